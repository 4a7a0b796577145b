//! Where the target is, and logins to it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use base::serial::Serial32;
use iscsi::pdu::{Bhs, InitiatorTaskTag, Isid, LoginRequest, LoginResponse, LoginStage};
use iscsi::text::Keys;

use crate::verdict::{Outcome, ensure, fail, skip};
use crate::wire::Wire;

/// Our name.
pub const INITIATOR: &str = "iqn.2026-01.io.forebay:conformance";

/// Keys that a target only declares.
const DECLARATIONS: [&str; 5] =
    ["TargetPortalGroupTag", "TargetAlias", "TargetAddress", "MaxRecvDataSegmentLength", "AuthMethod"];

/// The target under test.
pub struct Bench {
    /// Its portal.
    pub address: SocketAddr,
    /// Its iSCSI name.
    pub target: String,
    /// The logical unit that is used.
    pub lun: u64,
    /// Whether the logical unit's data may be overwritten.
    pub allows_data_loss: bool,
    isid_next: AtomicU32,
}

impl Bench {
    /// A bench for a target. LUN numbers above 255 are not needed by any.
    pub fn new(address: SocketAddr, target: String, lun: u8, allows_data_loss: bool) -> Self {
        let isid_next = AtomicU32::new(std::process::id() << 8);
        Self { address, target, lun: u64::from(lun) << 48, allows_data_loss, isid_next }
    }

    /// A name for a session that no other one has.
    pub fn fresh_isid(&self) -> Isid {
        Isid::random_format(self.isid_next.fetch_add(1, Ordering::Relaxed) & 0x00ff_ffff, 1)
    }

    /// A connection that has said nothing yet.
    pub fn connect(&self) -> Outcome<Wire> {
        Wire::connect(self.address, self.lun)
    }

    /// A login request of this bench's.
    pub fn login_request(&self, wire: &Wire, isid: Isid, tsih: u16, cid: u16) -> LoginRequest {
        LoginRequest {
            is_continued: false,
            current_stage: LoginStage::OperationalNegotiation,
            transit_to: Some(LoginStage::FullFeaturePhase),
            version_max: 0,
            version_min: 0,
            isid,
            tsih,
            initiator_task_tag: InitiatorTaskTag::new(1).expect("one is not reserved"),
            cid,
            cmd_sn: wire.cmd_sn,
            exp_stat_sn: Serial32(0),
        }
    }

    /// The names every first request of a normal session has, and `keys`.
    pub fn text(&self, keys: &[(&str, &str)]) -> Vec<u8> {
        let names = [("InitiatorName", INITIATOR), ("TargetName", self.target.as_str()), ("SessionType", "Normal")];
        names.into_iter().chain(keys.iter().copied()).collect::<Keys>().emit()
    }

    /// Logs in and gives the last response, whatever its status.
    pub fn try_log_in(
        &self,
        wire: &mut Wire,
        isid: Isid,
        tsih: u16,
        cid: u16,
        keys: &[(&str, &str)],
    ) -> Outcome<LoginResponse> {
        let request = self.login_request(wire, isid, tsih, cid);
        let mut text = self.text(keys);
        for _ in 0..8 {
            wire.send(&request, std::mem::take(&mut text))?;
            let (response, answers) = wire.login_response()?;
            // What the target proposes of its own accord is agreed to.
            let is_said = |key: &str| keys.iter().any(|(said, _)| *said == key) || DECLARATIONS.contains(&key);
            let agreed = answers.iter().filter(|(key, _)| !is_said(key) && wire.answers.get(key).is_none());
            text = agreed.collect::<Keys>().emit();
            wire.answers.append(answers);
            if !response.status.is_success() || response.transit_to.is_some() {
                if response.status.is_success() {
                    wire.enter_full_feature_phase(&response, isid, cid);
                }
                return Ok(response);
            }
        }
        fail("the login does not come to an end")
    }

    /// A session of its own, with its unit attentions heard.
    pub fn log_in(&self, keys: &[(&str, &str)]) -> Outcome<Wire> {
        let mut wire = self.connect()?;
        let response = self.try_log_in(&mut wire, self.fresh_isid(), 0, 1, keys)?;
        ensure(response.status.is_success(), format!("the login is refused: {}", response.status))?;
        wire.settle()?;
        Ok(wire)
    }

    /// A session with a value of a key; skipped when the target does not agree to it.
    pub fn log_in_with(&self, keys: &[(&str, &str)], key: &str, wanted: &str) -> Outcome<Wire> {
        let wire = self.log_in(keys)?;
        match wire.answers.get(key) {
            Some(value) if value == wanted => Ok(wire),
            other => skip(format!("the target answers {key}={}", other.unwrap_or("nothing"))),
        }
    }

    /// A session with this error recovery level.
    pub fn log_in_at_level(&self, level: &str, keys: &[(&str, &str)]) -> Outcome<Wire> {
        let all: Vec<(&str, &str)> =
            [("ErrorRecoveryLevel", level), ("DefaultTime2Wait", "0"), ("DefaultTime2Retain", "20")]
                .into_iter()
                .chain(keys.iter().copied())
                .collect();
        self.log_in_with(&all, "ErrorRecoveryLevel", level)
    }

    /// A session of two connections.
    pub fn log_in_twice(&self, keys: &[(&str, &str)]) -> Outcome<(Wire, Wire)> {
        let all: Vec<(&str, &str)> = [("MaxConnections", "2")].into_iter().chain(keys.iter().copied()).collect();
        let first = self.log_in_with(&all, "MaxConnections", "2")?;
        let second = self.join(&first, 2)?;
        Ok((first, second))
    }

    /// Another connection of a session.
    pub fn join(&self, first: &Wire, cid: u16) -> Outcome<Wire> {
        let mut wire = self.connect()?;
        wire.cmd_sn = first.cmd_sn;
        let response = self.try_log_in(&mut wire, first.isid, first.tsih, cid, &[])?;
        ensure(response.status.is_success(), format!("the connection may not join: {}", response.status))?;
        Ok(wire)
    }

    /// Skips what would overwrite data.
    pub fn needs_to_write(&self) -> Outcome {
        if self.allows_data_loss { Ok(()) } else { skip("it writes, and --allow-data-loss was not given") }
    }
}

/// What a PDU is, for messages.
pub fn name(bhs: &Bhs) -> String {
    format!("{bhs:?}").chars().take(160).collect()
}
