//! Status codes (SAM-5 5.3.1).

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Carried out.
    Good = 0x00,
    /// Not carried out as asked; the sense data says why.
    CheckCondition = 0x02,
    /// A pre-fetch found room for everything.
    ConditionMet = 0x04,
    /// Come back later.
    Busy = 0x08,
    /// Another I_T nexus holds a reservation that forbids it.
    ReservationConflict = 0x18,
    /// The task set has no room.
    TaskSetFull = 0x28,
    /// An auto contingent allegiance is in effect.
    AcaActive = 0x30,
    /// Another I_T nexus aborted it.
    TaskAborted = 0x40,
}

impl Status {
    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The status with this code, or `None` for a reserved or obsolete one.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Good,
            0x02 => Self::CheckCondition,
            0x04 => Self::ConditionMet,
            0x08 => Self::Busy,
            0x18 => Self::ReservationConflict,
            0x28 => Self::TaskSetFull,
            0x30 => Self::AcaActive,
            0x40 => Self::TaskAborted,
            _ => return None,
        })
    }

    /// As SAM-5 calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Good => "GOOD",
            Self::CheckCondition => "CHECK CONDITION",
            Self::ConditionMet => "CONDITION MET",
            Self::Busy => "BUSY",
            Self::ReservationConflict => "RESERVATION CONFLICT",
            Self::TaskSetFull => "TASK SET FULL",
            Self::AcaActive => "ACA ACTIVE",
            Self::TaskAborted => "TASK ABORTED",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_names_itself() {
        let known: Vec<u8> = (0..=255).filter(|&code| Status::from_code(code).is_some()).collect();
        assert_eq!(known, [0x00, 0x02, 0x04, 0x08, 0x18, 0x28, 0x30, 0x40]);
        for code in known {
            assert_eq!(Status::from_code(code).map(Status::code), Some(code));
        }
    }
}
