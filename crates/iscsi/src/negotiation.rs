//! Login and text negotiation of operational parameters (RFC 7143 6.2 and 13, RFC 7144 7.1.1).
//!
//! [`RULES`] says everything there is to say about a key: what kind of value it has, how two wishes become one, its default
//! and range, who may send it, in which stage, and whether a discovery session cares. A [`Negotiator`] works through it for either end:
//!
//! ```text
//! propose()            keys to send: every wish (initiator), or those the default would not meet (target)
//! handle(stage, keys)  what the peer sent: proposals are answered, answers are checked against the selection rule,
//!                      declarations are kept; login keys (names, AuthMethod, CHAP_*) pass through to the login machine
//! negotiated()         the values in force: defaults until something else was agreed
//! ```
//!
//! What it keeps true: a value in force is always admissible, and one both ends agreed to or the default; a key is taken from the
//! peer once; FirstBurstLength never exceeds MaxBurstLength.
//!
//! Where a peer is less than exact and the standard lets us, we are lenient: a proposal that is never answered leaves the
//! default, and TaskReporting and iSCSIProtocolLevel may be NotUnderstood by older ends.

use crate::limits::{NEGOTIATION_LIST_ITEMS_MAX, RECV_DATA_SEGMENT_BYTES};
use crate::pdu::LoginStage;
use crate::text::{IRRELEVANT, Keys, NONE, NOT_UNDERSTOOD, REJECT, boolean, parse_boolean, parse_number};

/// A login stage, or the full feature phase; the value is the CSG and NSG code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// SecurityNegotiation.
    Security = 0,
    /// LoginOperationalNegotiation.
    Operational = 1,
    /// FullFeaturePhase.
    FullFeature = 3,
}

impl From<LoginStage> for Stage {
    fn from(stage: LoginStage) -> Self {
        match stage {
            LoginStage::SecurityNegotiation => Self::Security,
            LoginStage::OperationalNegotiation => Self::Operational,
            LoginStage::FullFeaturePhase => Self::FullFeature,
        }
    }
}

/// Which end of the negotiation we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Who opened the connection.
    Initiator,
    /// Who answers.
    Target,
}

/// Digest of headers or of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Digest {
    /// No digest.
    #[default]
    None,
    /// CRC32C.
    Crc32c,
}

/// What a session is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionType {
    /// SCSI commands.
    #[default]
    Normal,
    /// SendTargets only.
    Discovery,
}

/// Task completion reporting semantics (RFC 7143 13.23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskReporting {
    /// As RFC 3720 had it.
    #[default]
    Rfc3720,
    /// Responses are fenced.
    ResponseFence,
    /// Fast completion of multi-task aborts.
    FastAbort,
}

/// The keys of which a value is kept, in the order in which they are worked through: a key stands after those it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Key {
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
const KEY_COUNT: usize = Key::ProtocolLevel as usize + 1;

/// How a key's value is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The first of the proposer's list that the acceptor takes. The value is an index into these names.
    List(&'static [&'static str]),
    /// The smaller of two numbers.
    Minimum(u32, u32),
    /// The larger of two numbers.
    Maximum(u32, u32),
    /// Yes when both say Yes.
    And,
    /// Yes when one says Yes.
    Or,
    /// Each end says its own number.
    DeclaredNumber(u32, u32),
    /// One of these names, said by one end.
    DeclaredName(&'static [&'static str]),
}

/// Who may send a key first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Senders {
    Initiator,
    Target,
    Both,
}

/// When a key may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// SecurityNegotiation only.
    Security,
    /// Operational stage of the leading login (LO) or of any login (IO).
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
    fn allows(self, stage: Stage) -> bool {
        match self {
            Self::Security => stage == Stage::Security,
            Self::Login => stage == Stage::Operational,
            Self::All => stage != Stage::Security,
            Self::AnyLoginStage => stage != Stage::FullFeature,
            Self::Any => true,
            Self::FullFeature => stage == Stage::FullFeature,
        }
    }
}

/// One row per key whose value is kept.
struct Rule {
    name: &'static str,
    kind: Kind,
    default: u32,
    senders: Senders,
    usage: Use,
    is_irrelevant_in_discovery: bool,
    /// Whether older ends may answer NotUnderstood (RFC 7144 7.1.1; RFC 7143 13.23 came with RFC 5048).
    may_be_unknown: bool,
}

const YES: u32 = 1;
const DIGESTS: &[&str] = &[NONE, "CRC32C"];
const SESSION_TYPES: &[&str] = &["Normal", "Discovery"];
const REPORTINGS: &[&str] = &["RFC3720", "ResponseFence", "FastAbort"];
/// 2^24 - 1: what fits in the 24 bits of DataSegmentLength.
const LENGTH_MAX: u32 = (1 << 24) - 1;

const fn rule(name: &'static str, kind: Kind, default: u32) -> Rule {
    Rule {
        name,
        kind,
        default,
        senders: Senders::Both,
        usage: Use::Login,
        is_irrelevant_in_discovery: false,
        may_be_unknown: false,
    }
}

const fn normal_only(name: &'static str, kind: Kind, default: u32) -> Rule {
    Rule { is_irrelevant_in_discovery: true, ..rule(name, kind, default) }
}

/// RFC 7143 13 in the order of [`Key`].
#[rustfmt::skip]
static RULES: [Rule; KEY_COUNT] = [
    Rule { senders: Senders::Initiator, usage: Use::AnyLoginStage,
           ..rule("SessionType", Kind::DeclaredName(SESSION_TYPES), 0) },                              // 13.21
    rule("HeaderDigest", Kind::List(DIGESTS), 0),                                                      // 13.1
    rule("DataDigest", Kind::List(DIGESTS), 0),                                                        // 13.1
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

/// Keys that carry no operational value: the login machine reads them from the text itself, we only say when and from whom.
#[rustfmt::skip]
const LOGIN_KEYS: &[(&str, Senders, Use)] = &[
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
];

/// Keys of RFC 3720 that are answered with Reject (RFC 7143 13.25).
const OBSOLETE_KEYS: &[&str] = &["IFMarker", "OFMarker", "IFMarkInt", "OFMarkInt"];

/// What one end wishes. Lists are in order of preference.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Header digests we take, best first.
    pub header_digest: Vec<Digest>,
    /// Data digests we take, best first.
    pub data_digest: Vec<Digest>,
    /// Connections of the session.
    pub max_connections: u16,
    /// Whether we want every write to wait for an R2T.
    pub initial_r2t: bool,
    /// Whether we want data inside the command PDU.
    pub immediate_data: bool,
    /// Bytes of one data segment we receive.
    pub max_recv_data_segment_length: u32,
    /// Bytes of one solicited burst.
    pub max_burst_length: u32,
    /// Bytes sent unsolicited.
    pub first_burst_length: u32,
    /// Seconds before a reconnect.
    pub default_time2wait: u16,
    /// Seconds tasks are kept after a lost connection.
    pub default_time2retain: u16,
    /// R2Ts outstanding per task.
    pub max_outstanding_r2t: u16,
    /// Whether we need the PDUs of a sequence in order.
    pub data_pdu_in_order: bool,
    /// Whether we need sequences in order.
    pub data_sequence_in_order: bool,
    /// Recovery level.
    pub error_recovery_level: u8,
    /// Task reporting semantics we take, best first.
    pub task_reporting: Vec<TaskReporting>,
    /// iSCSIProtocolLevel: 2 for the features of RFC 7144.
    pub protocol_level: u8,
    /// Private keys (`X-...`) we understand, each a list of values we take, best first.
    pub private: Vec<(String, Vec<String>)>,
}

impl Offer {
    /// What an initiator wishes: few round trips, no digests unless the target insists.
    pub fn initiator() -> Self {
        Self {
            header_digest: vec![Digest::None, Digest::Crc32c],
            data_digest: vec![Digest::None, Digest::Crc32c],
            max_connections: 1,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: RECV_DATA_SEGMENT_BYTES,
            max_burst_length: 1 << 20,
            first_burst_length: 256 << 10,
            default_time2wait: 0,
            default_time2retain: 0,
            max_outstanding_r2t: 16,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            task_reporting: vec![TaskReporting::ResponseFence, TaskReporting::Rfc3720],
            protocol_level: 2,
            private: Vec::new(),
        }
    }

    /// What a target wishes: it takes whatever the initiator prefers, as far as it is admissible.
    pub fn target() -> Self {
        Self { default_time2retain: 20, ..Self::initiator() }
    }

    /// The wish for a key that is not a list.
    fn number(&self, key: Key) -> u32 {
        match key {
            Key::MaxConnections => self.max_connections.into(),
            Key::InitialR2T => self.initial_r2t.into(),
            Key::ImmediateData => self.immediate_data.into(),
            Key::MaxRecvDataSegmentLength => self.max_recv_data_segment_length,
            Key::MaxBurstLength => self.max_burst_length,
            Key::FirstBurstLength => self.first_burst_length.min(self.max_burst_length),
            Key::DefaultTime2Wait => self.default_time2wait.into(),
            Key::DefaultTime2Retain => self.default_time2retain.into(),
            Key::ErrorRecoveryLevel => self.error_recovery_level.into(),
            Key::DataPDUInOrder => self.data_pdu_in_order.into(),
            Key::DataSequenceInOrder => self.data_sequence_in_order.into(),
            Key::MaxOutstandingR2T => self.max_outstanding_r2t.into(),
            Key::ProtocolLevel => self.protocol_level.into(),
            Key::SessionType | Key::HeaderDigest | Key::DataDigest | Key::TaskReporting => 0,
        }
    }

    /// The wishes for a list key, as indices into its names.
    fn list(&self, key: Key) -> Vec<u32> {
        match key {
            Key::HeaderDigest => self.header_digest.iter().map(|&digest| digest as u32).collect(),
            Key::DataDigest => self.data_digest.iter().map(|&digest| digest as u32).collect(),
            Key::TaskReporting => self.task_reporting.iter().map(|&reporting| reporting as u32).collect(),
            _ => Vec::new(),
        }
    }
}

/// The values in force on a connection and its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// What the session is for.
    pub session_type: SessionType,
    /// Digest of every header, from the full feature phase on.
    pub header_digest: Digest,
    /// Digest of every data segment, from the full feature phase on.
    pub data_digest: Digest,
    /// Connections of the session.
    pub max_connections: u16,
    /// Whether every write waits for an R2T.
    pub initial_r2t: bool,
    /// Whether a command may carry data.
    pub immediate_data: bool,
    /// Bytes of one data segment the initiator receives.
    pub initiator_max_recv_data_segment_length: u32,
    /// Bytes of one data segment the target receives.
    pub target_max_recv_data_segment_length: u32,
    /// Bytes of one solicited burst.
    pub max_burst_length: u32,
    /// Bytes sent unsolicited for one command, immediate data included.
    pub first_burst_length: u32,
    /// Seconds before a reconnect.
    pub default_time2wait: u16,
    /// Seconds tasks are kept after a lost connection.
    pub default_time2retain: u16,
    /// R2Ts outstanding per task.
    pub max_outstanding_r2t: u16,
    /// Whether the PDUs of a sequence come in order.
    pub data_pdu_in_order: bool,
    /// Whether sequences come in order.
    pub data_sequence_in_order: bool,
    /// Recovery level.
    pub error_recovery_level: u8,
    /// Task reporting semantics.
    pub task_reporting: TaskReporting,
    /// iSCSIProtocolLevel.
    pub protocol_level: u8,
}

impl Default for Negotiated {
    /// The defaults of the standard.
    fn default() -> Self {
        Negotiator::target(Offer::target()).negotiated()
    }
}

/// How a peer broke the rules of negotiation. All are protocol errors: a target answers with a Login reject, an initiator drops the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// RFC 7143 6.3.
    #[error("{0} was sent more than once")]
    Repeated(String),
    /// RFC 7143 6.3.
    #[error("{0} is not allowed in this stage")]
    WrongStage(String),
    /// The key belongs to the other end.
    #[error("{0} is not for this end to send")]
    WrongSender(String),
    /// A reserved answer as a proposal (RFC 7143 6.2).
    #[error("{0} was proposed with a value reserved for answers")]
    ReservedValue(String),
    /// A declared value that is not one.
    #[error("{key}=\"{value}\" is not a value of this key")]
    BadValue {
        /// Which key.
        key: String,
        /// What was declared.
        value: String,
    },
    /// An answer the selection rule does not allow (RFC 7143 6.2.1, 6.2.2).
    #[error("{key}=\"{answer}\" does not answer the proposal \"{proposal}\"")]
    BadAnswer {
        /// Which key.
        key: String,
        /// What we proposed.
        proposal: String,
        /// What came back.
        answer: String,
    },
}

/// Where one key stands.
#[derive(Clone, Debug, Default)]
struct Progress {
    proposed: Option<String>,
    is_received: bool,
}

/// One end's side of a login negotiation, and of later declarations.
#[derive(Clone, Debug)]
pub struct Negotiator {
    role: Role,
    offer: Offer,
    session_type: SessionType,
    values: [u32; KEY_COUNT],
    progress: Vec<Progress>,
    /// Our own declared MaxRecvDataSegmentLength, once sent.
    own_segment_length: u32,
    /// Login and private keys that were received.
    received: Vec<String>,
    private: Vec<(String, String)>,
    is_private_proposed: bool,
}

impl Negotiator {
    /// An initiator's side.
    pub fn initiator(offer: Offer, session_type: SessionType) -> Self {
        Self::new(Role::Initiator, offer, session_type)
    }

    /// A target's side. It learns the session type from the initiator.
    pub fn target(offer: Offer) -> Self {
        Self::new(Role::Target, offer, SessionType::Normal)
    }

    fn new(role: Role, offer: Offer, session_type: SessionType) -> Self {
        let mut values = [0; KEY_COUNT];
        for (value, rule) in values.iter_mut().zip(&RULES) {
            *value = rule.default;
        }
        Self {
            role,
            offer,
            session_type,
            own_segment_length: values[Key::MaxRecvDataSegmentLength as usize],
            values,
            progress: vec![Progress::default(); KEY_COUNT],
            received: Vec::new(),
            private: Vec::new(),
            is_private_proposed: false,
        }
    }

    /// What this end has to say of its own accord in the operational stage. An initiator proposes every wish. A target declares its
    /// MaxRecvDataSegmentLength, and proposes where neither end spoke and the default is not admissible to it; call it after
    /// [`Negotiator::handle`]. Each key is said once, however often this is called.
    ///
    /// A target that proposes (anything but the declaration) must not accept a transition in the same response (RFC 7143 6.3):
    /// [`Negotiator::awaits_answers`] tells.
    pub fn propose(&mut self) -> Keys {
        let mut keys = Keys::new();
        for (index, rule) in RULES.iter().enumerate() {
            let key = KEYS[index];
            if key == Key::SessionType || self.progress[index].proposed.is_some() || self.is_irrelevant(rule, key) {
                continue;
            }
            let is_declaration = key == Key::MaxRecvDataSegmentLength;
            let is_heard = self.progress[index].is_received;
            let is_needed = self.role == Role::Initiator || self.own_result(key, rule.default) != Some(rule.default);
            if !is_declaration && (is_heard || !is_needed) {
                continue;
            }
            let value = self.wish(key);
            if is_declaration {
                self.own_segment_length = self.offer.max_recv_data_segment_length;
            }
            keys.push(rule.name, value.clone());
            self.progress[index].proposed = Some(value);
        }
        let is_normal = self.session_type == SessionType::Normal;
        if self.role == Role::Initiator && is_normal && !std::mem::replace(&mut self.is_private_proposed, true) {
            let unsaid = self.offer.private.iter().filter(|(name, _)| !self.received.contains(name));
            keys.append(unsaid.map(|(name, values)| (name.clone(), values.join(","))).collect());
        }
        keys
    }

    /// Whether a proposal of ours must still be answered by the peer.
    pub fn awaits_answers(&self) -> bool {
        self.progress.iter().zip(&RULES).any(|(progress, rule)| {
            let is_declaration = matches!(rule.kind, Kind::DeclaredNumber(..) | Kind::DeclaredName(_));
            progress.proposed.is_some() && !progress.is_received && !is_declaration
        })
    }

    /// Takes what the peer sent in `stage` and gives the answers to send, in the order of the standard's dependencies.
    /// Login keys (names, aliases, addresses, AuthMethod, CHAP_*) are checked for stage, sender and repetition only.
    ///
    /// # Errors
    /// What [`NegotiationError`] lists; the login must then be ended.
    pub fn handle(&mut self, stage: Stage, keys: &Keys) -> Result<Keys, NegotiationError> {
        let mut answers = Keys::new();
        for (index, rule) in RULES.iter().enumerate() {
            if let Some(value) = keys.get(rule.name)
                && let Some(answer) = self.handle_operational(stage, KEYS[index], value)?
            {
                answers.push(rule.name, answer);
            }
        }
        for (name, value) in keys.iter().filter(|(name, _)| !RULES.iter().any(|rule| rule.name == *name)) {
            if let Some(answer) = self.handle_other(stage, name, value)? {
                answers.push(name, answer);
            }
        }
        Ok(answers)
    }

    /// Starts a text negotiation of the full feature phase: keys of use ALL may be said once more (RFC 7143 6.4).
    pub fn restart(&mut self) {
        self.progress.iter_mut().for_each(|progress| *progress = Progress::default());
        self.received.clear();
    }

    /// The values in force now.
    pub fn negotiated(&self) -> Negotiated {
        let value = |key: Key| self.values[key as usize];
        let short = |key: Key| u16::try_from(value(key)).unwrap_or(u16::MAX);
        let peer_segment_length = value(Key::MaxRecvDataSegmentLength);
        let (initiator_segment, target_segment) = match self.role {
            Role::Initiator => (self.own_segment_length, peer_segment_length),
            Role::Target => (peer_segment_length, self.own_segment_length),
        };
        Negotiated {
            session_type: self.session_type,
            header_digest: digest(value(Key::HeaderDigest)),
            data_digest: digest(value(Key::DataDigest)),
            max_connections: short(Key::MaxConnections),
            initial_r2t: value(Key::InitialR2T) == YES,
            immediate_data: value(Key::ImmediateData) == YES,
            initiator_max_recv_data_segment_length: initiator_segment,
            target_max_recv_data_segment_length: target_segment,
            max_burst_length: value(Key::MaxBurstLength),
            first_burst_length: value(Key::FirstBurstLength).min(value(Key::MaxBurstLength)),
            default_time2wait: short(Key::DefaultTime2Wait),
            default_time2retain: short(Key::DefaultTime2Retain),
            max_outstanding_r2t: short(Key::MaxOutstandingR2T),
            data_pdu_in_order: value(Key::DataPDUInOrder) == YES,
            data_sequence_in_order: value(Key::DataSequenceInOrder) == YES,
            error_recovery_level: value(Key::ErrorRecoveryLevel) as u8,
            task_reporting: match value(Key::TaskReporting) {
                1 => TaskReporting::ResponseFence,
                2 => TaskReporting::FastAbort,
                _ => TaskReporting::Rfc3720,
            },
            protocol_level: value(Key::ProtocolLevel) as u8,
        }
    }

    /// What was agreed for a private key of the offer, if anything was.
    pub fn private(&self, name: &str) -> Option<&str> {
        self.private.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn handle_operational(&mut self, stage: Stage, key: Key, value: &str) -> Result<Option<String>, NegotiationError> {
        let index = key as usize;
        let rule = &RULES[index];
        self.check(rule.name, rule.senders, rule.usage, stage)?;
        if std::mem::replace(&mut self.progress[index].is_received, true) {
            return Err(NegotiationError::Repeated(rule.name.to_owned()));
        }
        if matches!(rule.kind, Kind::DeclaredNumber(..) | Kind::DeclaredName(_)) {
            return self.handle_declaration(key, value).map(|()| None);
        }
        match self.progress[index].proposed.clone() {
            Some(proposal) => self.handle_answer(key, &proposal, value).map(|()| None),
            None => self.handle_proposal(key, value).map(Some),
        }
    }

    fn check(&self, name: &str, senders: Senders, usage: Use, stage: Stage) -> Result<(), NegotiationError> {
        let is_ours = match self.role {
            Role::Initiator => senders == Senders::Initiator,
            Role::Target => senders == Senders::Target,
        };
        if is_ours {
            return Err(NegotiationError::WrongSender(name.to_owned()));
        }
        if !usage.allows(stage) {
            return Err(NegotiationError::WrongStage(name.to_owned()));
        }
        Ok(())
    }

    fn handle_declaration(&mut self, key: Key, value: &str) -> Result<(), NegotiationError> {
        let rule = &RULES[key as usize];
        // An end of RFC 3720 may answer our declaration; a refusal of it cannot mean anything to us.
        if self.progress[key as usize].proposed.is_some() && is_reserved(value) {
            return Ok(());
        }
        let bad_value = || NegotiationError::BadValue { key: rule.name.to_owned(), value: value.to_owned() };
        let parsed = parse_value(rule.kind, value).ok_or_else(bad_value)?;
        self.values[key as usize] = parsed;
        if key == Key::SessionType {
            self.session_type = if parsed == 0 { SessionType::Normal } else { SessionType::Discovery };
        }
        Ok(())
    }

    fn handle_proposal(&mut self, key: Key, value: &str) -> Result<String, NegotiationError> {
        let rule = &RULES[key as usize];
        if is_reserved(value) {
            return Err(NegotiationError::ReservedValue(rule.name.to_owned()));
        }
        if self.is_irrelevant(rule, key) {
            return Ok(IRRELEVANT.to_owned());
        }
        let selected = match rule.kind {
            Kind::List(names) => {
                let wishes = self.offer.list(key);
                let mut offered = value.split(',').take(NEGOTIATION_LIST_ITEMS_MAX);
                offered.find_map(|item| index_of(names, item).filter(|index| wishes.contains(index)))
            }
            kind => parse_value(kind, value).and_then(|proposed| self.own_result(key, proposed)),
        };
        let Some(selected) = selected else { return Ok(REJECT.to_owned()) };
        self.values[key as usize] = selected;
        Ok(print_value(rule.kind, selected))
    }

    fn handle_answer(&mut self, key: Key, proposal: &str, answer: &str) -> Result<(), NegotiationError> {
        let rule = &RULES[key as usize];
        let is_pass = matches!(answer, REJECT | IRRELEVANT) || (answer == NOT_UNDERSTOOD && rule.may_be_unknown);
        if is_pass {
            // The protocol level, when nobody understands it, is below what its features need (RFC 7144 7.1.1): the default says so.
            return Ok(());
        }
        let bad_answer = || NegotiationError::BadAnswer {
            key: rule.name.to_owned(),
            proposal: proposal.to_owned(),
            answer: answer.to_owned(),
        };
        let selected = parse_value(rule.kind, answer).ok_or_else(bad_answer)?;
        let proposed = parse_value(rule.kind, proposal).unwrap_or(rule.default);
        let is_admissible = match rule.kind {
            Kind::List(_) => proposal.split(',').any(|item| item == answer),
            Kind::Minimum(..) => selected <= proposed,
            Kind::Maximum(..) => selected >= proposed,
            Kind::And => selected <= proposed,
            Kind::Or => selected >= proposed,
            Kind::DeclaredNumber(..) | Kind::DeclaredName(_) => true,
        };
        if !is_admissible {
            return Err(bad_answer());
        }
        self.values[key as usize] = selected;
        Ok(())
    }

    fn handle_other(&mut self, stage: Stage, name: &str, value: &str) -> Result<Option<String>, NegotiationError> {
        if let Some((_, senders, usage)) = LOGIN_KEYS.iter().find(|(key, ..)| *key == name) {
            self.check(name, *senders, *usage, stage)?;
            let may_repeat = name == "TargetAddress";
            // Each CHAP key comes once from each end; AuthMethod as well.
            self.note_received(name, may_repeat)?;
            return Ok(None);
        }
        self.note_received(name, false)?;
        if OBSOLETE_KEYS.contains(&name) {
            return Ok(Some(REJECT.to_owned()));
        }
        if is_reserved(value) {
            return Ok(None);
        }
        let is_usable = self.session_type == SessionType::Normal;
        let own = self.offer.private.iter().find(|(key, _)| key == name).filter(|_| is_usable);
        let Some((_, wishes)) = own else { return Ok(Some(NOT_UNDERSTOOD.to_owned())) };
        let mut offered = value.split(',').take(NEGOTIATION_LIST_ITEMS_MAX);
        let Some(selected) = offered.find(|item| wishes.iter().any(|wish| wish == item)) else {
            return Ok((self.role == Role::Target).then(|| REJECT.to_owned()));
        };
        self.private.push((name.to_owned(), selected.to_owned()));
        Ok((self.role == Role::Target).then(|| selected.to_owned()))
    }

    fn note_received(&mut self, name: &str, may_repeat: bool) -> Result<(), NegotiationError> {
        if !may_repeat && self.received.iter().any(|key| key == name) {
            return Err(NegotiationError::Repeated(name.to_owned()));
        }
        self.received.push(name.to_owned());
        Ok(())
    }

    /// RFC 7143 13: what a discovery session, or the answer to another key, makes meaningless.
    fn is_irrelevant(&self, rule: &Rule, key: Key) -> bool {
        let is_agreed = |key: Key| self.progress[key as usize].is_received;
        let value = |key: Key| self.values[key as usize];
        (rule.is_irrelevant_in_discovery && self.session_type == SessionType::Discovery)
            || (key == Key::FirstBurstLength
                && is_agreed(Key::InitialR2T)
                && is_agreed(Key::ImmediateData)
                && value(Key::InitialR2T) == YES
                && value(Key::ImmediateData) != YES)
    }

    /// What comes of `other`'s wish and ours, for keys that are not lists; for lists, whether `other` is one of our wishes.
    fn own_result(&self, key: Key, other: u32) -> Option<u32> {
        let own = match key {
            Key::FirstBurstLength => self.offer.number(key).min(self.values[Key::MaxBurstLength as usize]),
            // RFC 7143 13.19: with recovery and ordered sequences, one R2T at a time.
            Key::MaxOutstandingR2T if self.values[Key::ErrorRecoveryLevel as usize] > 0 => 1,
            key => self.offer.number(key),
        };
        match RULES[key as usize].kind {
            Kind::List(_) => self.offer.list(key).contains(&other).then_some(other),
            Kind::Minimum(..) | Kind::And => Some(own.min(other)),
            Kind::Maximum(..) | Kind::Or => Some(own.max(other)),
            Kind::DeclaredNumber(..) | Kind::DeclaredName(_) => Some(own),
        }
    }

    /// Our wish as it is proposed.
    fn wish(&self, key: Key) -> String {
        match RULES[key as usize].kind {
            Kind::List(names) => {
                let wishes = self.offer.list(key);
                let names = wishes.iter().filter_map(|&index| names.get(index as usize).copied());
                names.collect::<Vec<_>>().join(",")
            }
            // A target speaks after MaxBurstLength is agreed on, and must not wish for more (RFC 7143 13.14).
            kind if key == Key::FirstBurstLength && self.role == Role::Target => {
                print_value(kind, self.offer.number(key).min(self.values[Key::MaxBurstLength as usize]))
            }
            kind => print_value(kind, self.offer.number(key)),
        }
    }
}

/// [`Key`] by index.
const KEYS: [Key; KEY_COUNT] = [
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

fn is_reserved(value: &str) -> bool {
    matches!(value, REJECT | IRRELEVANT | NOT_UNDERSTOOD)
}

fn digest(index: u32) -> Digest {
    if index == Digest::Crc32c as u32 { Digest::Crc32c } else { Digest::None }
}

fn index_of(names: &[&str], name: &str) -> Option<u32> {
    names.iter().position(|known| *known == name).and_then(|index| u32::try_from(index).ok())
}

/// `value` as this kind of key has it, if it is admissible. A list is judged by its first item.
fn parse_value(kind: Kind, value: &str) -> Option<u32> {
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

fn print_value(kind: Kind, value: u32) -> String {
    match kind {
        Kind::List(names) | Kind::DeclaredName(names) => names.get(value as usize).copied().unwrap_or(NONE).to_owned(),
        Kind::And | Kind::Or => boolean(value == YES).to_owned(),
        Kind::Minimum(..) | Kind::Maximum(..) | Kind::DeclaredNumber(..) => value.to_string(),
    }
}

#[cfg(test)]
mod tests;
