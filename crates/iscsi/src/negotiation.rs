//! Login and text negotiation of operational parameters (RFC 7143 6.2 and 13, RFC 7144 7.1.1).
//!
//! The table in `rules` defines each key: the kind of its value, how two proposals become one
//! value, its default and range, which end may send it, in which stage, and whether it applies to a
//! discovery session. A [`Negotiator`] works through it for either end:
//!
//! ```text
//! propose()            keys to send: every proposal (initiator), or those without admissible default (target)
//! handle(stage, keys)  the peer's keys: proposals are answered, answers are checked against the selection rule,
//!                      declarations are kept; login keys (names, AuthMethod, CHAP_*) pass through to the login machine
//! negotiated()         the values in force: defaults until something else was agreed
//! ```
//!
//! What it keeps true: a value in force is always admissible, and either agreed by both ends or the
//! default; a key is accepted from the peer once; FirstBurstLength never exceeds MaxBurstLength.
//!
//! Where a peer is less than exact and the standard allows it, we are lenient: a proposal that is
//! never answered leaves the default, and older ends may answer NotUnderstood to TaskReporting and
//! iSCSIProtocolLevel.

mod named;
mod offer;
mod rules;
mod stage;

pub use named::NamedValue;
pub use offer::{Digest, Negotiated, Offer, SessionType, TaskReporting};
pub use stage::Stage;

use std::collections::BTreeMap;

use self::rules::{
    KEY_COUNT, KEYS, Key, Kind, LOGIN_KEYS, OBSOLETE_KEYS, RULES, Rule, Senders, Use, YES, index_of, parse_value,
    print_value,
};
use crate::limits::{NEGOTIATION_LIST_ITEMS_MAX, TEXT_KEYS_MAX};
use crate::text::{IRRELEVANT, Keys, NOT_UNDERSTOOD, REJECT};

/// The end of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The end that opened the connection.
    Initiator,
    /// The end that answers.
    Target,
}

/// Keys that may be repeated with the same value. libiscsi sends its name in both stages when it
/// offers CHAP and the target does not require it; a repeated value negotiates nothing, and
/// refusing the session would help no one.
const SAYABLE_AGAIN: [&str; 3] = ["InitiatorName", "InitiatorAlias", "TargetName"];

/// Violations of the rules of negotiation. All are protocol errors: a target answers with a Login
/// reject, an initiator drops the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// RFC 7143 6.3.
    #[error("{0} was sent more than once")]
    Repeated(String),
    /// More than [`TEXT_KEYS_MAX`] in one negotiation.
    #[error("a negotiation of more than {TEXT_KEYS_MAX} keys")]
    TooManyKeys,
    /// RFC 7143 6.3.
    #[error("{0} is not allowed in this stage")]
    WrongStage(String),
    /// The key belongs to the other end.
    #[error("{0} is not for this end to send")]
    WrongSender(String),
    /// A reserved answer as a proposal (RFC 7143 6.2).
    #[error("{0} was proposed with a value reserved for answers")]
    ReservedValue(String),
    /// An inadmissible declared value.
    #[error("{key}=\"{value}\" is not a value of this key")]
    BadValue {
        /// The key.
        key: String,
        /// The declared value.
        value: String,
    },
    /// An answer the selection rule does not allow (RFC 7143 6.2.1, 6.2.2).
    #[error("{key}=\"{answer}\" does not answer the proposal \"{proposal}\"")]
    BadAnswer {
        /// The key.
        key: String,
        /// Our proposal.
        proposal: String,
        /// The peer's answer.
        answer: String,
    },
}

/// The progress of one key.
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
    /// Whether the connection joins a session, whose values are fixed.
    is_joining: bool,
    values: [u32; KEY_COUNT],
    progress: Vec<Progress>,
    /// Our own declared MaxRecvDataSegmentLength, once sent.
    own_segment_length: u32,
    /// Login and private keys that were received, with their values.
    received: BTreeMap<String, String>,
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
            is_joining: false,
            own_segment_length: values[Key::MaxRecvDataSegmentLength as usize],
            values,
            progress: vec![Progress::default(); KEY_COUNT],
            received: BTreeMap::new(),
            private: Vec::new(),
            is_private_proposed: false,
        }
    }

    /// Notes that the login does not lead its session: values of the session are not proposed again
    /// (RFC 7143 13, "use: LO").
    pub fn join_session(&mut self) {
        self.is_joining = true;
    }

    /// The keys that this end sends unasked in the operational stage. An initiator sends every
    /// proposal. A target declares its MaxRecvDataSegmentLength, and proposes where no key was sent
    /// and the default is not admissible to it; call it after [`Negotiator::handle`]. Each key is
    /// sent once, however often this is called.
    ///
    /// A target that proposes (anything but the declaration) must not accept a transition in the
    /// same response (RFC 7143 6.3): see [`Negotiator::awaits_answers`].
    pub fn propose(&mut self) -> Keys {
        let mut keys = Keys::new();
        for (index, rule) in RULES.iter().enumerate() {
            let key = KEYS[index];
            if key == Key::SessionType || self.progress[index].proposed.is_some() || self.is_irrelevant(rule, key) {
                continue;
            }
            if self.is_joining && rule.usage == Use::LeadingLogin {
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
        if self.role == Role::Initiator
            && is_normal
            && !self.is_joining
            && !std::mem::replace(&mut self.is_private_proposed, true)
        {
            let unsaid = self.offer.private.iter().filter(|(name, _)| !self.received.contains_key(name));
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

    /// Handles the peer's keys of `stage`. Returns the answers, in the order of the standard's
    /// dependencies. Login keys (names, aliases, addresses, AuthMethod, CHAP_*) are only checked
    /// for stage, sender and repetition.
    ///
    /// # Errors
    /// The breaches that [`NegotiationError`] lists; the login must then be ended.
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

    /// Starts a text negotiation of the full feature phase: keys of use ALL may be sent once more
    /// (RFC 7143 6.4).
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

    /// The agreed value of a private key of the offer; `None` if none was agreed.
    pub fn private(&self, name: &str) -> Option<&str> {
        self.private.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The peer's value of a login key without operational value.
    pub fn received(&self, name: &str) -> Option<&str> {
        self.received.get(name).map(String::as_str)
    }

    fn handle_operational(&mut self, stage: Stage, key: Key, value: &str) -> Result<Option<String>, NegotiationError> {
        let index = key as usize;
        let rule = &RULES[index];
        self.check(rule.name, rule.senders, rule.usage, stage)?;
        if std::mem::replace(&mut self.progress[index].is_received, true) {
            // As with SAYABLE_AGAIN.
            let is_said_again = key == Key::SessionType && value == self.session_type.as_str();
            return if is_said_again { Ok(None) } else { Err(NegotiationError::Repeated(rule.name.to_owned())) };
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
        // An end of RFC 3720 may answer our declaration; its refusal has no meaning.
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
            // A peer that does not understand the protocol level is below the level of its features
            // (RFC 7144 7.1.1), as the default says.
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
            // Each CHAP key comes once from each end; so does AuthMethod. Addresses may be many;
            // names and session type may be repeated.
            let is_said_again =
                SAYABLE_AGAIN.contains(&name) && self.received.get(name).is_some_and(|said| said == value);
            self.note_received(name, value, name == "TargetAddress" || is_said_again)?;
            return Ok(None);
        }
        self.note_received(name, value, false)?;
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

    fn note_received(&mut self, name: &str, value: &str, may_repeat: bool) -> Result<(), NegotiationError> {
        if self.received.contains_key(name) {
            return if may_repeat { Ok(()) } else { Err(NegotiationError::Repeated(name.to_owned())) };
        }
        if self.received.len() >= TEXT_KEYS_MAX {
            return Err(NegotiationError::TooManyKeys);
        }
        self.received.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    /// RFC 7143 13: keys that a discovery session, or the answer to another key, makes irrelevant.
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

    /// The result of `other`'s proposal and ours, for keys that are not lists; for lists, whether
    /// `other` is one of our values.
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

    /// The text of our proposal.
    fn wish(&self, key: Key) -> String {
        match RULES[key as usize].kind {
            Kind::List(names) => {
                let wishes = self.offer.list(key);
                let names = wishes.iter().filter_map(|&index| names.get(index as usize).copied());
                names.collect::<Vec<_>>().join(",")
            }
            // A target sends this after MaxBurstLength is agreed, and must not propose more (RFC
            // 7143 13.14).
            kind if key == Key::FirstBurstLength && self.role == Role::Target => {
                print_value(kind, self.offer.number(key).min(self.values[Key::MaxBurstLength as usize]))
            }
            kind => print_value(kind, self.offer.number(key)),
        }
    }
}

fn is_reserved(value: &str) -> bool {
    matches!(value, REJECT | IRRELEVANT | NOT_UNDERSTOOD)
}

fn digest(index: u32) -> Digest {
    if index == Digest::Crc32c as u32 { Digest::Crc32c } else { Digest::None }
}

#[cfg(test)]
mod tests;
