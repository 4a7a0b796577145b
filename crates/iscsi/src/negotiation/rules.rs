//! The table of keys (RFC 7143 12 and 13, RFC 7144 7.1.1): one row defines a key completely.

use super::stage::Stage;
use crate::split::ANSWERS_FOR;
use crate::text::{NONE, boolean, parse_boolean, parse_number};

/// The keys whose value is kept, in the order in which they are handled: a key comes after those on
/// which it depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Key {
    SessionType,
    HeaderDigest,
    DataDigest,
    MaxConnections,
    InitialR2T,
    ImmediateData,
    MaxRecvDataSegmentLength,
    MaxBurstLength,
    FirstBurstLength,
    DefaultTime2Wait,
    DefaultTime2Retain,
    ErrorRecoveryLevel,
    DataPDUInOrder,
    DataSequenceInOrder,
    MaxOutstandingR2T,
    TaskReporting,
    ProtocolLevel,
}

pub(super) const KEY_COUNT: usize = Key::ProtocolLevel as usize + 1;

/// How the value of a key is negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first value of the proposer's list that the acceptor accepts. The value is an index into
    /// these names.
    List(&'static [&'static str]),
    /// The smaller of two numbers.
    Minimum(u32, u32),
    /// The larger of two numbers.
    Maximum(u32, u32),
    /// Yes when both propose Yes.
    And,
    /// Yes when one proposes Yes.
    Or,
    /// A number that each end declares for itself.
    DeclaredNumber(u32, u32),
    /// One of these names, declared by one end.
    DeclaredName(&'static [&'static str]),
}

/// The ends that may send a key first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Senders {
    Initiator,
    Target,
    Both,
}

/// When a key may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// SecurityNegotiation only.
    Security,
    /// Operational stage of the login that leads the session (LO).
    LeadingLogin,
    /// Operational stage of any login (IO).
    Login,
    /// Operational stage and full feature phase (ALL).
    All,
    /// Any stage of a login.
    AnyLoginStage,
    /// Any stage, and the full feature phase.
    Any,
    /// Full feature phase only (FFPO).
    FullFeature,
}

impl Use {
    pub(super) fn allows(self, stage: Stage) -> bool {
        match self {
            Self::Security => stage == Stage::Security,
            Self::LeadingLogin | Self::Login => stage == Stage::Operational,
            Self::All => stage != Stage::Security,
            Self::AnyLoginStage => stage != Stage::FullFeature,
            Self::Any => true,
            Self::FullFeature => stage == Stage::FullFeature,
        }
    }
}

/// One row per key whose value is kept.
pub(super) struct Rule {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) default: u32,
    pub(super) senders: Senders,
    pub(super) usage: Use,
    pub(super) is_irrelevant_in_discovery: bool,
    /// Whether older ends may answer NotUnderstood (RFC 7144 7.1.1; RFC 7143 13.23 came with RFC 5048).
    pub(super) may_be_unknown: bool,
}

pub(super) const YES: u32 = 1;
pub(super) const DIGESTS: &[&str] = &[NONE, "CRC32C"];
pub(super) const SESSION_TYPES: &[&str] = &["Normal", "Discovery"];
pub(super) const REPORTINGS: &[&str] = &["RFC3720", "ResponseFence", "FastAbort"];
/// 2^24 - 1: what fits in the 24 bits of DataSegmentLength.
pub(super) const LENGTH_MAX: u32 = (1 << 24) - 1;

pub(super) const fn rule(name: &'static str, kind: Kind, default: u32) -> Rule {
    Rule {
        name,
        kind,
        default,
        senders: Senders::Both,
        usage: Use::LeadingLogin,
        is_irrelevant_in_discovery: false,
        may_be_unknown: false,
    }
}

pub(super) const fn normal_only(name: &'static str, kind: Kind, default: u32) -> Rule {
    Rule { is_irrelevant_in_discovery: true, ..rule(name, kind, default) }
}

/// RFC 7143 13 in the order of [`Key`].
#[rustfmt::skip]
pub(super) static RULES: [Rule; KEY_COUNT] = [
    Rule { senders: Senders::Initiator, usage: Use::AnyLoginStage,
           ..rule("SessionType", Kind::DeclaredName(SESSION_TYPES), 0) },                              // 13.21
    Rule { usage: Use::Login, ..rule("HeaderDigest", Kind::List(DIGESTS), 0) },                        // 13.1
    Rule { usage: Use::Login, ..rule("DataDigest", Kind::List(DIGESTS), 0) },                          // 13.1
    normal_only("MaxConnections", Kind::Minimum(1, 65535), 1),                                         // 13.2
    normal_only("InitialR2T", Kind::Or, YES),                                                          // 13.10
    normal_only("ImmediateData", Kind::And, YES),                                                      // 13.11
    Rule { usage: Use::All,
           ..rule("MaxRecvDataSegmentLength", Kind::DeclaredNumber(512, LENGTH_MAX), 8192) },          // 13.12
    normal_only("MaxBurstLength", Kind::Minimum(512, LENGTH_MAX), 262_144),                            // 13.13
    normal_only("FirstBurstLength", Kind::Minimum(512, LENGTH_MAX), 65_536),                           // 13.14
    rule("DefaultTime2Wait", Kind::Maximum(0, 3600), 2),                                               // 13.15
    rule("DefaultTime2Retain", Kind::Minimum(0, 3600), 20),                                            // 13.16
    rule("ErrorRecoveryLevel", Kind::Minimum(0, 2), 0),                                                // 13.20
    normal_only("DataPDUInOrder", Kind::Or, YES),                                                      // 13.18
    normal_only("DataSequenceInOrder", Kind::Or, YES),                                                 // 13.19
    normal_only("MaxOutstandingR2T", Kind::Minimum(1, 65535), 1),                                      // 13.17
    Rule { may_be_unknown: true, ..normal_only("TaskReporting", Kind::List(REPORTINGS), 0) },          // 13.23
    Rule { may_be_unknown: true, ..normal_only("iSCSIProtocolLevel", Kind::Minimum(0, 31), 1) },       // RFC 7144 7.1.1
];
const _: () = assert!(RULES.len() == KEY_COUNT);

/// Keys without an operational value: the login code reads them from the text itself, this table
/// only defines stage and sender.
#[rustfmt::skip]
pub(super) const LOGIN_KEYS: &[(&str, Senders, Use)] = &[
    ("AuthMethod", Senders::Both, Use::Security),                    // 12.1
    ("CHAP_A", Senders::Both, Use::Security),                        // 12.1.3, and the four below
    ("CHAP_I", Senders::Both, Use::Security),
    ("CHAP_C", Senders::Both, Use::Security),
    ("CHAP_N", Senders::Both, Use::Security),
    ("CHAP_R", Senders::Both, Use::Security),
    ("SendTargets", Senders::Initiator, Use::FullFeature),           // 13.3
    ("TargetName", Senders::Initiator, Use::AnyLoginStage),          // 13.4
    ("InitiatorName", Senders::Initiator, Use::AnyLoginStage),       // 13.5
    ("TargetAlias", Senders::Target, Use::Any),                      // 13.6
    ("InitiatorAlias", Senders::Initiator, Use::Any),                // 13.7
    ("TargetAddress", Senders::Target, Use::Any),                    // 13.8
    ("TargetPortalGroupTag", Senders::Target, Use::AnyLoginStage),   // 13.9
    ("X#NodeArchitecture", Senders::Both, Use::Any),                 // 13.26
    (ANSWERS_FOR, Senders::Initiator, Use::Login),                   // docs/protocol/split-connections.md
];

/// Keys of RFC 3720 that are answered with Reject (RFC 7143 13.25).
pub(super) const OBSOLETE_KEYS: &[&str] = &["IFMarker", "OFMarker", "IFMarkInt", "OFMarkInt"];

/// [`Key`] by index.
pub(super) const KEYS: [Key; KEY_COUNT] = [
    Key::SessionType,
    Key::HeaderDigest,
    Key::DataDigest,
    Key::MaxConnections,
    Key::InitialR2T,
    Key::ImmediateData,
    Key::MaxRecvDataSegmentLength,
    Key::MaxBurstLength,
    Key::FirstBurstLength,
    Key::DefaultTime2Wait,
    Key::DefaultTime2Retain,
    Key::ErrorRecoveryLevel,
    Key::DataPDUInOrder,
    Key::DataSequenceInOrder,
    Key::MaxOutstandingR2T,
    Key::TaskReporting,
    Key::ProtocolLevel,
];

pub(super) fn index_of(names: &[&str], name: &str) -> Option<u32> {
    names.iter().position(|known| *known == name).and_then(|index| u32::try_from(index).ok())
}

/// Parses `value` for this kind of key, if it is admissible. Of a list only the first item counts.
pub(super) fn parse_value(kind: Kind, value: &str) -> Option<u32> {
    match kind {
        Kind::List(names) => index_of(names, value.split(',').next().unwrap_or_default()),
        Kind::DeclaredName(names) => index_of(names, value),
        Kind::And | Kind::Or => parse_boolean(value).map(u32::from),
        Kind::Minimum(min, max) | Kind::Maximum(min, max) | Kind::DeclaredNumber(min, max) => {
            let number = u32::try_from(parse_number(value)?).ok()?;
            (min..=max).contains(&number).then_some(number)
        }
    }
}

pub(super) fn print_value(kind: Kind, value: u32) -> String {
    match kind {
        Kind::List(names) | Kind::DeclaredName(names) => names.get(value as usize).copied().unwrap_or(NONE).to_owned(),
        Kind::And | Kind::Or => boolean(value == YES).to_owned(),
        Kind::Minimum(..) | Kind::Maximum(..) | Kind::DeclaredNumber(..) => value.to_string(),
    }
}
