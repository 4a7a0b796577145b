//! Service actions of SHARING IN and OUT.

/// Service actions of SHARING IN.
pub mod action_in {
    #![expect(missing_docs, reason = "the protocol's own names")]
    pub const REPORT: u8 = 0x00;
}

/// Service actions of SHARING OUT.
pub mod action_out {
    #![expect(missing_docs, reason = "the protocol's own names")]
    pub const REGISTER: u8 = 0x00;
    pub const RENEW: u8 = 0x01;
    pub const LEAVE: u8 = 0x02;
    pub const LOCK: u8 = 0x03;
    pub const UNLOCK: u8 = 0x04;
    pub const ACKNOWLEDGE: u8 = 0x05;
    pub const BEGIN: u8 = 0x06;
    pub const END: u8 = 0x07;
    pub const OPEN: u8 = 0x08;
    pub const CLOSE: u8 = 0x09;
    pub const FENCE: u8 = 0x0a;
    pub const CANCEL: u8 = 0x0b;
}
