//! Login, the initiator's side (RFC 7143 6.3): requests out, responses in, until the full feature phase.
//!
//! ```text
//! SecurityNegotiation       names, AuthMethod      ->  method, TargetPortalGroupTag
//!                           [CHAP_A, then CHAP_N and CHAP_R ...]
//! LoginOperationalNegotiation  all proposals       ->  answers            until the target agrees to go on
//! FullFeaturePhase
//! ```
//!
//! A login without credentials still starts in SecurityNegotiation with AuthMethod=None, so that a
//! target which requires authentication reports that. One with credentials offers CHAP, and None
//! after it unless the target must prove itself as well.

use std::collections::VecDeque;

use base::serial::Serial32;

use crate::chap::{Challenge, ChapError, ChapInitiator, Credentials};
use crate::limits::{LOGIN_TEXT_BYTES_MAX, NEGOTIATION_EXCHANGES_MAX};
use crate::negotiation::{Negotiated, NegotiationError, Negotiator, Offer, SessionType};
use crate::pdu::{InitiatorTaskTag, Isid, LoginRequest, LoginResponse, LoginStage, LoginStatus};
use crate::sharing;
use crate::split;
use crate::text::{Keys, NONE, TextAssembler, TextError, segments};

/// The tag of a login; nothing else is under way on a connection that logs in.
const LOGIN_TAG: InitiatorTaskTag = InitiatorTaskTag::new(0).expect("zero is not the reserved value");

/// MaxRecvDataSegmentLength in force during login (RFC 7143 6.3).
const LOGIN_SEGMENT_BYTES: usize = 8192;

/// The parameters of a login.
#[derive(Clone, Debug)]
pub struct LoginConfig {
    /// InitiatorName.
    pub initiator_name: String,
    /// TargetName; without one, a discovery session.
    pub target_name: Option<String>,
    /// The initiator's part of the session's name. Logging in again with the same one reinstates the session.
    pub isid: Isid,
    /// The target's part of the session's name: zero for a new session, else the session to join.
    pub tsih: u16,
    /// Connection ID.
    pub cid: u16,
    /// CID of the connection whose responses this one will carry (`docs/protocol/split-connections.md`).
    pub answers_for: Option<u16>,
    /// Our proposals.
    pub offer: Offer,
    /// Our credentials, for a target that asks for them.
    pub chap: Option<ChapLogin>,
}

/// How to authenticate.
#[derive(Clone, Debug)]
pub struct ChapLogin {
    /// Our name and secret.
    pub own: Credentials,
    /// The target's, when it must prove itself, and a fresh challenge for it.
    pub target: Option<(Credentials, Challenge)>,
}

/// The result of a login.
#[derive(Clone, Debug)]
pub struct LoggedIn {
    /// The values in force.
    pub negotiated: Negotiated,
    /// The target's part of the session's name.
    pub tsih: u16,
    /// First StatSN not seen yet.
    pub exp_stat_sn: Serial32,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: Serial32,
    /// Last CmdSN it accepts.
    pub max_cmd_sn: Serial32,
    /// TargetPortalGroupTag, if the target sent it.
    pub portal_group_tag: Option<String>,
    /// TargetAlias, if the target sent it.
    pub target_alias: Option<String>,
    /// Whether connections may be split (`docs/protocol/split-connections.md`).
    pub may_split: bool,
    /// Whether commands and messages of shared units are used (`docs/protocol/sharing.md`).
    pub may_share: bool,
}

/// Why a login failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The target refused it.
    #[error("the target refused the login: {} ({:04x}h)", .0.name(), .0.0)]
    Refused(LoginStatus),
    /// The target redirects to another address.
    #[error("the target moved to {}", addresses.join(", "))]
    Moved {
        /// Permanently; else only for this login.
        is_permanent: bool,
        /// TargetAddress values, without portal group tags.
        addresses: Vec<String>,
    },
    /// No method of authentication suits both.
    #[error("the target wants to authenticate by \"{0}\", which was not offered")]
    Method(String),
    /// CHAP failed.
    #[error("authentication: {0}")]
    Chap(#[from] ChapError),
    /// The target violated the rules of negotiation.
    #[error("negotiation: {0}")]
    Negotiation(#[from] NegotiationError),
    /// A malformed text.
    #[error("text: {0}")]
    Text(#[from] TextError),
    /// The target violated another rule.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
}

/// The next step of the caller.
#[derive(Debug)]
pub enum LoginStep {
    /// Send this, with this data segment.
    Send(LoginRequest, Vec<u8>),
    /// The full feature phase has begun.
    Done(Box<LoggedIn>),
}

/// The state of authentication.
#[derive(Debug)]
enum Authentication {
    /// The method is not known yet.
    Proposed,
    Chap(ChapInitiator),
    Done,
}

/// One login.
pub struct Login {
    config: LoginConfig,
    stage: LoginStage,
    negotiator: Negotiator,
    authentication: Authentication,
    received: TextAssembler,
    /// Pieces of a text that is longer than one request, with their C bits.
    unsent: VecDeque<(Vec<u8>, bool)>,
    /// Whether the text being sent ends with the T bit.
    wants_transit: bool,
    is_awaiting_transit: bool,
    exchange_count: u32,
    cmd_sn: Serial32,
    exp_stat_sn: Serial32,
    portal_group_tag: Option<String>,
    target_alias: Option<String>,
}

impl Login {
    /// A login whose session will number its first command `cmd_sn`.
    pub fn new(config: LoginConfig, cmd_sn: Serial32) -> Self {
        let session_type = if config.target_name.is_some() { SessionType::Normal } else { SessionType::Discovery };
        let mut negotiator = Negotiator::initiator(config.offer.clone(), session_type);
        if config.tsih != 0 {
            negotiator.join_session();
        }
        Self {
            negotiator,
            config,
            stage: LoginStage::SecurityNegotiation,
            authentication: Authentication::Proposed,
            received: TextAssembler::new(LOGIN_TEXT_BYTES_MAX),
            unsent: VecDeque::new(),
            wants_transit: false,
            is_awaiting_transit: false,
            exchange_count: 0,
            cmd_sn,
            exp_stat_sn: Serial32(0),
            portal_group_tag: None,
            target_alias: None,
        }
    }

    /// The first request.
    pub fn start(&mut self) -> (LoginRequest, Vec<u8>) {
        let mut keys = Keys::new();
        keys.push("InitiatorName", self.config.initiator_name.clone());
        // RFC 7143 13.21: only the leading login sends it. Linux's target answers another one with
        // NotUnderstood.
        if self.config.tsih == 0 {
            let session_type =
                if self.config.target_name.is_some() { SessionType::Normal } else { SessionType::Discovery };
            keys.push("SessionType", session_type.as_str());
        }
        if let Some(name) = &self.config.target_name {
            keys.push("TargetName", name.clone());
        }
        let methods = match &self.config.chap {
            None => NONE,
            Some(ChapLogin { target: None, .. }) => "CHAP,None",
            Some(ChapLogin { target: Some(_), .. }) => "CHAP",
        };
        keys.push("AuthMethod", methods);
        self.send(&keys, self.config.chap.is_none())
    }

    /// Handles a response and its data segment.
    ///
    /// # Errors
    /// [`LoginError`]; the connection must then be closed.
    pub fn handle_response(&mut self, response: &LoginResponse, data: &[u8]) -> Result<LoginStep, LoginError> {
        if response.status.class() > 1 {
            return Err(LoginError::Refused(response.status));
        }
        self.exchange_count += 1;
        if self.exchange_count > NEGOTIATION_EXCHANGES_MAX {
            return Err(LoginError::Protocol("the login does not come to an end"));
        }
        if response.initiator_task_tag != LOGIN_TAG {
            return Err(LoginError::Protocol("a login response with another initiator task tag"));
        }
        self.exp_stat_sn = response.stat_sn.next();
        let text = self.received.handle_segment(data, response.is_continued)?;
        // RFC 7143 6.2: the rest of a text is requested with an empty request.
        let Some(text) = text else { return Ok(LoginStep::Send(self.request(false), Vec::new())) };
        let keys = Keys::parse(&text)?;
        if response.status.is_redirection() {
            return Err(moved(response.status, &keys));
        }
        if response.current_stage != self.stage {
            return Err(LoginError::Protocol("a login response of another stage"));
        }
        if let Some((piece, continues)) = self.unsent.pop_front() {
            return if keys.is_empty() && response.transit_to.is_none() {
                Ok(LoginStep::Send(self.request(continues), piece))
            } else {
                Err(LoginError::Protocol("the target answered a text before its end"))
            };
        }
        self.handle_keys(response, &keys)
    }

    fn handle_keys(&mut self, response: &LoginResponse, keys: &Keys) -> Result<LoginStep, LoginError> {
        let mut answers = self.negotiator.handle(self.stage.into(), keys)?;
        self.note_declarations(keys);
        if self.stage == LoginStage::SecurityNegotiation {
            answers.append(self.authenticate(keys)?);
        }
        let Some(next) = response.transit_to else {
            let is_ready = self.stage != LoginStage::SecurityNegotiation || self.is_ready_to_leave_security();
            let (request, text) = self.send(&answers, is_ready);
            return Ok(LoginStep::Send(request, text));
        };
        if !self.is_awaiting_transit || next.code() <= self.stage.code() {
            return Err(LoginError::Protocol("the target changed the stage on its own"));
        }
        if !answers.is_empty() {
            return Err(LoginError::Protocol("the target ended a stage with a question"));
        }
        self.enter(next, response)
    }

    /// Enters `next`, to which the target agreed.
    fn enter(&mut self, next: LoginStage, response: &LoginResponse) -> Result<LoginStep, LoginError> {
        if self.stage == LoginStage::SecurityNegotiation && !self.is_authenticated() {
            return Err(LoginError::Protocol("the target skipped the authentication it was asked for"));
        }
        self.stage = next;
        if next == LoginStage::FullFeaturePhase {
            return Ok(LoginStep::Done(Box::new(LoggedIn {
                negotiated: self.negotiator.negotiated(),
                tsih: response.tsih,
                exp_stat_sn: self.exp_stat_sn,
                exp_cmd_sn: response.exp_cmd_sn,
                max_cmd_sn: response.max_cmd_sn,
                portal_group_tag: self.portal_group_tag.take(),
                target_alias: self.target_alias.take(),
                may_split: self.negotiator.private(split::SPLIT_CONNECTIONS).is_some(),
                may_share: self.negotiator.private(sharing::SHARING).is_some(),
            })));
        }
        let mut wishes = self.negotiator.propose();
        if let Some(cid) = self.config.answers_for {
            wishes.push(split::ANSWERS_FOR, cid.to_string());
        }
        let (request, text) = self.send(&wishes, true);
        Ok(LoginStep::Send(request, text))
    }

    fn note_declarations(&mut self, keys: &Keys) {
        let noted = |name: &str| keys.get(name).map(str::to_owned);
        self.portal_group_tag = noted("TargetPortalGroupTag").or(self.portal_group_tag.take());
        self.target_alias = noted("TargetAlias").or(self.target_alias.take());
    }

    /// Handles the security keys of one response. Returns the answers.
    fn authenticate(&mut self, keys: &Keys) -> Result<Keys, LoginError> {
        match &mut self.authentication {
            Authentication::Proposed => self.choose_method(keys),
            Authentication::Chap(chap) if chap.is_done() => Ok(Keys::new()),
            Authentication::Chap(chap) => Ok(chap.handle(keys)?),
            Authentication::Done => Ok(Keys::new()),
        }
    }

    fn choose_method(&mut self, keys: &Keys) -> Result<Keys, LoginError> {
        let offered = self.config.chap.clone();
        let must_prove = offered.as_ref().is_some_and(|chap| chap.target.is_some());
        match (keys.get("AuthMethod"), offered) {
            (Some("CHAP"), Some(chap)) => {
                let mut exchange = ChapInitiator::new(chap.own, chap.target);
                let offer = exchange.offer();
                self.authentication = Authentication::Chap(exchange);
                Ok(offer)
            }
            // A target without requirements may leave the key out when only None was offered.
            (Some(NONE), _) | (None, None) if !must_prove => {
                self.authentication = Authentication::Done;
                Ok(Keys::new())
            }
            (method, _) => Err(LoginError::Method(method.unwrap_or_default().to_owned())),
        }
    }

    /// Whether the next request may ask to leave the stage: our last proof is in it or was sent
    /// before.
    fn is_ready_to_leave_security(&self) -> bool {
        match &self.authentication {
            Authentication::Proposed => false,
            Authentication::Chap(chap) => chap.has_responded(),
            Authentication::Done => true,
        }
    }

    fn is_authenticated(&self) -> bool {
        match &self.authentication {
            Authentication::Proposed => false,
            Authentication::Chap(chap) => chap.is_done(),
            Authentication::Done => true,
        }
    }

    /// A request with `keys`, asking for the next stage if `wants_transit`. Longer texts are cut.
    fn send(&mut self, keys: &Keys, wants_transit: bool) -> (LoginRequest, Vec<u8>) {
        let text = keys.emit();
        self.unsent =
            segments(&text, LOGIN_SEGMENT_BYTES).map(|(piece, continues)| (piece.to_vec(), continues)).collect();
        self.wants_transit = wants_transit;
        let (piece, continues) = self.unsent.pop_front().expect("there is always a first piece");
        (self.request(continues), piece)
    }

    fn request(&mut self, continues: bool) -> LoginRequest {
        self.is_awaiting_transit = self.wants_transit && !continues;
        let next = match self.stage {
            LoginStage::SecurityNegotiation => LoginStage::OperationalNegotiation,
            LoginStage::OperationalNegotiation | LoginStage::FullFeaturePhase => LoginStage::FullFeaturePhase,
        };
        LoginRequest {
            is_continued: continues,
            current_stage: self.stage,
            transit_to: self.is_awaiting_transit.then_some(next),
            version_max: 0,
            version_min: 0,
            isid: self.config.isid,
            tsih: self.config.tsih,
            initiator_task_tag: LOGIN_TAG,
            cid: self.config.cid,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        }
    }
}

fn moved(status: LoginStatus, keys: &Keys) -> LoginError {
    let addresses = keys.iter().filter(|(name, _)| *name == "TargetAddress");
    // RFC 7143 13.8: no portal group tag is allowed here, but some targets send one.
    let without_tag = |address: &str| address.split(',').next().unwrap_or_default().to_owned();
    LoginError::Moved {
        is_permanent: status == LoginStatus::TARGET_MOVED_PERMANENTLY,
        addresses: addresses.map(|(_, address)| without_tag(address)).collect(),
    }
}
