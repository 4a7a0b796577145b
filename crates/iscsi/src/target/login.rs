//! The login phase (RFC 7143 6.3).
//!
//! ```text
//! (start) ──► SecurityNegotiation ──► LoginOperationalNegotiation ──► FullFeaturePhase
//!    └──────────────────────────────────────▲        ▲
//!                    └───────────────────────────────┘ (security straight to the end)
//! ```
//!
//! A stage is left when the initiator asks for it and nothing is open: required authentication, and
//! answers to this end's proposals. Any error ends the login with the status of RFC 7143 11.13.5.

use std::sync::Arc;

use super::event::SessionRequest;
use super::parameters::{Authentication, TargetDescription, TargetParameters};
use crate::chap::{Challenge, ChapError, ChapTarget};
use crate::limits::{LOGIN_TEXT_BYTES_MAX, NAME_BYTES_MAX, NEGOTIATION_EXCHANGES_MAX};
use crate::name;
use crate::negotiation::{Negotiator, SessionType, Stage};
use crate::pdu::{LoginRequest, LoginStage, LoginStatus};
use crate::sharing;
use crate::split;
use crate::text::{Keys, TextAssembler};

/// Bytes of one login response's text: the default MaxRecvDataSegmentLength is used during login (RFC 7143 6.3).
const RESPONSE_TEXT_BYTES_MAX: usize = 8192;

/// The end of a login.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: LoginStatus,
    pub(super) detail: String,
}

impl Refusal {
    pub(super) fn new(status: LoginStatus, detail: impl Into<String>) -> Self {
        Self { status, detail: name::printable(&detail.into()) }
    }
}

/// The answer to one Login Request.
#[derive(Debug, Default)]
pub(super) struct LoginAnswer {
    pub(super) transit_to: Option<LoginStage>,
    pub(super) text: Vec<u8>,
    /// More text follows when an empty request asks for it (C bit, RFC 7143 11.13.2).
    pub(super) is_continued: bool,
    /// The login is complete: the owner of the sessions decides, then this answer is sent.
    pub(super) session: Option<Box<SessionRequest>>,
}

/// The state of authentication.
enum Proof {
    /// Not negotiated yet.
    Open,
    /// The initiator need not prove anything.
    NotNeeded,
    /// CHAP is under way, or done.
    Chap(Box<ChapTarget>),
}

/// A login under way.
pub(super) struct Login {
    parameters: Arc<TargetParameters>,
    challenge: Challenge,
    first: Option<LoginRequest>,
    stage: LoginStage,
    text: TextAssembler,
    /// The part of an answer that did not fit in the last response.
    rest: Vec<u8>,
    exchanges: u32,
    negotiator: Negotiator,
    initiator_name: Option<String>,
    target: Option<TargetDescription>,
    authentication: Authentication,
    proof: Proof,
}

impl Login {
    pub(super) fn new(parameters: Arc<TargetParameters>, challenge: Challenge) -> Self {
        Self {
            negotiator: Negotiator::target(parameters.offer.clone()),
            parameters,
            challenge,
            first: None,
            stage: LoginStage::SecurityNegotiation,
            text: TextAssembler::new(LOGIN_TEXT_BYTES_MAX),
            rest: Vec::new(),
            exchanges: 0,
            initiator_name: None,
            target: None,
            authentication: Authentication::default(),
            proof: Proof::Open,
        }
    }

    /// Handles the next request and its data segment.
    pub(super) fn handle(&mut self, request: &LoginRequest, segment: &[u8]) -> Result<LoginAnswer, Refusal> {
        self.check_header(request)?;
        let text = self.text.handle_segment(segment, request.is_continued).map_err(initiator_error)?;
        let Some(text) = text else { return Ok(LoginAnswer::default()) };
        if !self.rest.is_empty() {
            if !text.is_empty() {
                return Err(initiator_error("keys while this end has not said all of its answer"));
            }
            let rest = std::mem::take(&mut self.rest);
            return self.send(request, rest);
        }
        let keys = Keys::parse(&text).map_err(initiator_error)?;
        let stage = match self.stage {
            LoginStage::SecurityNegotiation => Stage::Security,
            _ => Stage::Operational,
        };
        let mut answers = self.negotiator.handle(stage, &keys).map_err(initiator_error)?;
        if self.initiator_name.is_none() {
            let mut first_answers = self.identify(&keys)?;
            first_answers.append(answers);
            answers = first_answers;
        }
        if stage == Stage::Security {
            answers.append(self.authenticate(&keys)?);
        } else {
            self.check_proof()?;
            answers.append(self.negotiator.propose());
        }
        self.answer(request, answers)
    }

    fn check_header(&mut self, request: &LoginRequest) -> Result<(), Refusal> {
        self.exchanges += 1;
        if self.exchanges > NEGOTIATION_EXCHANGES_MAX {
            return Err(initiator_error("the login does not come to an end"));
        }
        match &self.first {
            None if request.version_min > 0 => {
                return Err(Refusal::new(LoginStatus::UNSUPPORTED_VERSION, "only version 0 is known here"));
            }
            None => {
                self.stage = request.current_stage;
                if request.tsih != 0 {
                    self.negotiator.join_session();
                }
                self.first = Some(*request);
            }
            Some(first) => {
                let name = |request: &LoginRequest| {
                    (request.isid, request.tsih, request.cid, request.initiator_task_tag, request.cmd_sn)
                };
                if name(first) != name(request) {
                    return Err(initiator_error("a login request that belongs to another login"));
                }
            }
        }
        if request.current_stage != self.stage || self.stage == LoginStage::FullFeaturePhase {
            return Err(initiator_error("a login request of another stage"));
        }
        if request.transit_to.is_some_and(|next| next.code() <= self.stage.code()) {
            return Err(initiator_error("a login can only go forward"));
        }
        Ok(())
    }

    /// Reads the names of the first request. Returns the keys of the first response.
    fn identify(&mut self, keys: &Keys) -> Result<Keys, Refusal> {
        let missing = |key: &str| Refusal::new(LoginStatus::MISSING_PARAMETER, format!("{key} is missing"));
        let initiator_name = keys.get("InitiatorName").ok_or_else(|| missing("InitiatorName"))?;
        if !name::is_valid(initiator_name) {
            return Err(initiator_error("InitiatorName is not an iSCSI name"));
        }
        let mut answers = Keys::new();
        let is_discovery = self.negotiator.negotiated().session_type == SessionType::Discovery;
        match keys.get("TargetName") {
            _ if is_discovery => self.authentication = self.parameters.discovery_authentication.clone(),
            None => return Err(missing("TargetName")),
            Some(name) => {
                let target = self.parameters.find(name).ok_or_else(|| {
                    let name: String = name.chars().take(NAME_BYTES_MAX).collect();
                    Refusal::new(LoginStatus::NOT_FOUND, format!("there is no target {name} here"))
                })?;
                let tag = self.parameters.portal_group_tag;
                if !target.is_in_group(tag) {
                    let detail = format!("the target {name} is not in portal group {tag}");
                    return Err(Refusal::new(LoginStatus::NOT_FOUND, detail));
                }
                if !target.access.admits(initiator_name) {
                    let detail = format!("the initiator is not allowed to use {name}");
                    return Err(Refusal::new(LoginStatus::AUTHORIZATION_FAILURE, detail));
                }
                if let Some(alias) = &target.alias {
                    answers.push("TargetAlias", alias.clone());
                }
                let accounts = target.access.accounts(initiator_name);
                self.authentication = Authentication { accounts, own: target.own.clone() };
                self.target = Some(target.clone());
            }
        }
        answers.push("TargetPortalGroupTag", self.parameters.portal_group_tag.to_string());
        self.initiator_name = Some(initiator_name.to_owned());
        Ok(answers)
    }

    fn authenticate(&mut self, keys: &Keys) -> Result<Keys, Refusal> {
        let mut answers = Keys::new();
        if let Some(methods) = keys.get("AuthMethod") {
            let method = if self.authentication.is_required() { "CHAP" } else { "None" };
            if !methods.split(',').any(|offered| offered == method) {
                return Err(authentication_failure(format!("the initiator offers {methods}, not {method}")));
            }
            answers.push("AuthMethod", method);
            self.proof = if self.authentication.is_required() {
                let Authentication { accounts, own } = self.authentication.clone();
                Proof::Chap(Box::new(ChapTarget::new(accounts, own, self.challenge)))
            } else {
                Proof::NotNeeded
            };
        }
        let says_chap = keys.iter().any(|(key, _)| key.starts_with("CHAP_"));
        if says_chap {
            let Proof::Chap(chap) = &mut self.proof else {
                return Err(authentication_failure("CHAP was not agreed on"));
            };
            answers.append(chap.handle(keys).map_err(|error: ChapError| authentication_failure(error.to_string()))?);
        }
        Ok(answers)
    }

    fn is_proved(&self) -> bool {
        match &self.proof {
            Proof::Chap(chap) => chap.is_done(),
            Proof::Open | Proof::NotNeeded => !self.authentication.is_required(),
        }
    }

    fn check_proof(&self) -> Result<(), Refusal> {
        if self.is_proved() { Ok(()) } else { Err(authentication_failure("the initiator did not authenticate itself")) }
    }

    fn answer(&mut self, request: &LoginRequest, answers: Keys) -> Result<LoginAnswer, Refusal> {
        self.send(request, answers.emit())
    }

    /// Sends as much text as one response takes; a stage is left with the last of it.
    fn send(&mut self, request: &LoginRequest, mut text: Vec<u8>) -> Result<LoginAnswer, Refusal> {
        if text.len() > RESPONSE_TEXT_BYTES_MAX {
            self.rest = text.split_off(RESPONSE_TEXT_BYTES_MAX);
            return Ok(LoginAnswer { text, is_continued: true, ..LoginAnswer::default() });
        }
        let Some(next) = request.transit_to else { return Ok(LoginAnswer { text, ..LoginAnswer::default() }) };
        if self.stage == LoginStage::SecurityNegotiation && matches!(self.proof, Proof::Open) {
            // The initiator wants to leave the stage without authentication, which is only allowed
            // if none is required.
            self.check_proof()?;
        }
        if !self.is_proved() || self.negotiator.awaits_answers() {
            return Ok(LoginAnswer { text, ..LoginAnswer::default() });
        }
        self.stage = next;
        let session = match next {
            LoginStage::FullFeaturePhase => Some(Box::new(self.session_request(request)?)),
            _ => None,
        };
        Ok(LoginAnswer { transit_to: Some(next), text, session, ..LoginAnswer::default() })
    }

    fn session_request(&self, request: &LoginRequest) -> Result<SessionRequest, Refusal> {
        let negotiated = self.negotiator.negotiated();
        let answers_for = self.negotiator.received(split::ANSWERS_FOR).map(str::parse).transpose();
        Ok(SessionRequest {
            initiator_name: self.initiator_name.clone().unwrap_or_default(),
            isid: request.isid,
            tsih: request.tsih,
            cid: request.cid,
            target_name: self.target.as_ref().map(|target| target.name.clone()),
            portal_group_tag: self.parameters.portal_group_tag,
            session_type: negotiated.session_type,
            authenticated_name: match &self.proof {
                Proof::Chap(chap) => chap.authenticated_name().map(str::to_owned),
                Proof::Open | Proof::NotNeeded => None,
            },
            negotiated,
            may_split: self.negotiator.private(split::SPLIT_CONNECTIONS).is_some() && negotiated.max_connections > 1,
            may_share: self.negotiator.private(sharing::SHARING).is_some()
                && negotiated.initiator_max_recv_data_segment_length >= sharing::SEGMENT_BYTES_MIN,
            answers_for: answers_for.map_err(|_| initiator_error("the key AnswersFor is no CID"))?,
        })
    }

    /// The target logged in to.
    pub(super) fn target(&self) -> Option<&TargetDescription> {
        self.target.as_ref()
    }

    /// The negotiation, which text requests of the full feature phase go on with.
    pub(super) fn into_negotiator(self) -> Negotiator {
        self.negotiator
    }
}

fn initiator_error(detail: impl ToString) -> Refusal {
    Refusal::new(LoginStatus::INITIATOR_ERROR, detail.to_string())
}

fn authentication_failure(detail: impl Into<String>) -> Refusal {
    Refusal::new(LoginStatus::AUTHENTICATION_FAILURE, detail)
}
