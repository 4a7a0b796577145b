//! The configuration of `forebay target serve`, from a file or from flags, with the secrets that it
//! names.

use std::fs;
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::path::Path;

use iscsi::chap::Credentials;
use iscsi::target::{AccessList, AccessRule, NamePattern, TargetPortal};
use target::PORTAL_GROUP_DEFAULT;
use target::{LunMask, MaskedLun, Quota};

use crate::busy_polling::BusyPolling;
use crate::error::{Error, Failure, Result};
use crate::limits_table::LimitsTable;
use crate::login::read_secret;
use crate::lun_mask::MaskSpec;
use crate::target_config::TargetConfig;
use crate::target_file::{InitiatorTable, PortalGroupTable, TargetFile, TargetTable};

/// A configuration file that was read.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The portals, if the file names any.
    pub portals: Option<Vec<TargetPortal>>,
    /// The address for metrics, if the file names one.
    pub metrics: Option<SocketAddr>,
    /// How long sessions poll their sockets before they sleep, if the file sets it.
    pub busy_polling: Option<BusyPolling>,
    /// The limits for peers.
    pub quota: Quota,
    /// The accounts for discovery; without any, every initiator may ask for the targets.
    pub discovery: Vec<Credentials>,
    /// The targets.
    pub targets: Vec<TargetConfig>,
}

/// Reads the file at `path`.
///
/// # Errors
/// When it cannot be read, or has an error, with the line.
pub fn read(path: &Path) -> Result<Configuration> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|error| Error::io(format!("cannot read {name}"), &error))?;
    let file = TargetFile::parse(&text).map_err(|error| Error::new(Failure::Usage, format!("{name}, {error}")))?;
    let portals = portals(file.portals, file.portal_group)?;
    let discovery = accounts(file.discovery.chap_user, file.discovery.chap_file.as_deref())?;
    let targets = file.target.into_iter().map(TargetTable::into_config).collect::<Result<_>>()?;
    let busy_polling = file.busy_poll.as_deref().map(busy_polling).transpose()?;
    Ok(Configuration { portals, metrics: file.metrics, busy_polling, quota: file.limits.quota(), discovery, targets })
}

fn busy_polling(text: &str) -> Result<BusyPolling> {
    text.parse().map_err(|why| Error::new(Failure::Usage, format!("busy-poll = {text:?}: {why}")))
}

/// All portals with their groups; `None` when the file names none.
fn portals(plain: Option<Vec<SocketAddr>>, groups: Vec<PortalGroupTable>) -> Result<Option<Vec<TargetPortal>>> {
    if let Some(group) = groups.iter().find(|group| group.tag == 0) {
        let message = format!("a portal group has a tag from 1 to 65535, not {}", group.tag);
        return Err(Error::new(Failure::Usage, message));
    }
    let in_group = |group: u16| move |address: SocketAddr| TargetPortal { address, group };
    let mut all: Vec<TargetPortal> = plain.into_iter().flatten().map(in_group(PORTAL_GROUP_DEFAULT)).collect();
    all.extend(groups.into_iter().flat_map(|group| group.portals.into_iter().map(in_group(group.tag))));
    Ok((!all.is_empty()).then_some(all))
}

impl TargetTable {
    fn into_config(self) -> Result<TargetConfig> {
        let accounts = accounts(self.chap_user, self.chap_file.as_deref())?;
        if !self.initiator.is_empty() && !accounts.is_empty() {
            let message = format!(
                "{}: with [[target.initiator]] tables, chap-user and chap-file belong into them, each with its own",
                self.iqn
            );
            return Err(Error::new(Failure::Usage, message));
        }
        let own = self::accounts(self.mutual_chap_user, self.mutual_chap_file.as_deref())?.pop();
        let (access, masks) = if self.initiator.is_empty() {
            (AccessList(vec![AccessRule::any_initiator(accounts)]), Vec::new())
        } else {
            let rules = self.initiator.into_iter().map(InitiatorTable::into_rule).collect::<Result<Vec<_>>>()?;
            let (rules, masks): (Vec<_>, Vec<_>) = rules.into_iter().unzip();
            (AccessList(rules), masks)
        };
        Ok(TargetConfig {
            iqn: iscsi::name::canonical(&self.iqn).into_owned(),
            alias: self.alias,
            luns: self.luns,
            portal_groups: self.portal_groups,
            access,
            masks,
            own,
        })
    }
}

impl InitiatorTable {
    fn into_rule(self) -> Result<(AccessRule, LunMask)> {
        if self.names.is_empty() {
            return Err(Error::new(Failure::Usage, "a [[target.initiator]] table names no initiator"));
        }
        let accounts = accounts(self.chap_user, self.chap_file.as_deref())?;
        let rule = AccessRule { initiators: self.names.into_iter().map(NamePattern::new).collect(), accounts };
        let masked =
            |MaskSpec { lun, of, is_read_only }| MaskedLun { lun: u64::from(lun), of: u64::from(of), is_read_only };
        let luns = self.luns.map(|luns| luns.into_iter().map(masked).collect());
        Ok((rule, LunMask { luns, is_read_only: self.read_only }))
    }
}

impl LimitsTable {
    /// The limits that the file sets.
    fn quota(&self) -> Quota {
        let default = Quota::default();
        Quota {
            sessions: self.sessions.map_or(default.sessions, NonZeroUsize::get),
            connections: self.connections.map_or(default.connections, NonZeroUsize::get),
            connections_per_session: self
                .connections_per_session
                .map_or(default.connections_per_session, NonZeroU16::get),
            connections_per_initiator: self
                .connections_per_initiator
                .map_or(default.connections_per_initiator, NonZeroUsize::get),
            unauthenticated_per_address: self
                .unauthenticated_per_address
                .map_or(default.unauthenticated_per_address, NonZeroUsize::get),
            session_data_in_bytes: self.data_in_per_session.unwrap_or(default.session_data_in_bytes),
            data_in_bytes: self.data_in.unwrap_or(default.data_in_bytes),
            session_data_out_bytes: self.data_out_per_session.unwrap_or(default.session_data_out_bytes),
            data_out_bytes: self.data_out.unwrap_or(default.data_out_bytes),
            session_commands: self.commands_per_session.map_or(default.session_commands, NonZeroU32::get),
            login_time: self.login_time.unwrap_or(default.login_time),
            login_idle: self.login_idle.unwrap_or(default.login_idle),
        }
    }
}

/// The accounts of a target: one, or none when every initiator may log in.
///
/// # Errors
/// When the secret is invalid, or a user has none.
fn accounts(user: Option<String>, chap_file: Option<&Path>) -> Result<Vec<Credentials>> {
    match (user, chap_file) {
        (Some(name), Some(path)) => Ok(vec![Credentials { name, secret: read_secret(path)? }]),
        (None, None) => Ok(Vec::new()),
        _ => Err(Error::new(Failure::Usage, "a CHAP user and the file with its secret go together")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Configuration> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("target.toml");
        fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn a_file_says_portals_and_targets() {
        let Configuration { portals, metrics, quota, targets, .. } = read_text(
            r#"
            portals = ["127.0.0.1:3260", "[::1]:3260"]
            metrics = "127.0.0.1:9860"
            [limits]
            connections = 7
            [[target]]
            iqn = "iqn.2026-11.org.example:a"
            luns = ["0=ram:1MiB", "1=ram:2MiB,read-only"]
            "#,
        )
        .unwrap();
        assert_eq!(portals.unwrap().len(), 2);
        assert_eq!(metrics.unwrap().port(), 9860);
        assert_eq!(quota, Quota { connections: 7, ..Quota::default() });
        assert_eq!(targets[0].luns.len(), 2);
        assert!(targets[0].access.admits("iqn.a:anybody") && targets[0].access.accounts("iqn.a:anybody").is_empty());
    }

    #[test]
    fn initiators_groups_and_views() {
        let Configuration { portals, targets, .. } = read_text(
            r#"
            portals = ["127.0.0.1:3260"]
            [[portal-group]]
            tag = 2
            portals = ["127.0.0.2:3260"]
            [[target]]
            iqn = "iqn.2026-11.org.example:a"
            luns = ["0=ram:1MiB", "1=ram:2MiB"]
            portal-groups = [2]
            [[target.initiator]]
            names = ["iqn.2026-11.org.example:backup*"]
            luns = ["0=1"]
            read-only = true
            [[target.initiator]]
            names = ["iqn.2026-11.org.example:db"]
            "#,
        )
        .unwrap();
        let groups: Vec<u16> = portals.unwrap().iter().map(|portal| portal.group).collect();
        assert_eq!(groups, [1, 2]);
        let target = &targets[0];
        assert_eq!(target.portal_groups, Some(vec![2]));
        assert_eq!(target.access.find("iqn.2026-11.org.example:backup7", None), Some(0));
        assert_eq!(target.access.find("iqn.2026-11.org.example:db", None), Some(1));
        assert_eq!(target.access.find("iqn.2026-11.org.example:web", None), None);
        let seen = target::MaskedLun { lun: 0, of: 1, is_read_only: false };
        assert_eq!(target.masks[0], LunMask { luns: Some(vec![seen]), is_read_only: true });
        assert_eq!(target.masks[1], LunMask::default());
    }

    #[test]
    fn what_is_there_counts_and_the_rest_is_as_ever() {
        let text = "sessions = 3\ndata-in = \"8MiB\"\nlogin-time = \"2s\"";
        let quota = toml::from_str::<LimitsTable>(text).unwrap().quota();
        let expected = Quota {
            sessions: 3,
            data_in_bytes: 8 << 20,
            login_time: std::time::Duration::from_secs(2),
            ..Quota::default()
        };
        assert_eq!(quota, expected);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, words) in [
            ("portals = 3", "line 1"),
            ("[[target]]\niqn = \"iqn.2026-11.org.example:a\"\nluns = [\"0=tape:x\"]", "no backend"),
            ("[[target]]\niqn = \"iqn.2026-11.org.example:a\"\nluns = []\nport = 1", "port"),
            ("", "target"),
            ("[limits]\nsession = 1", "line 2"),
        ] {
            let error = read_text(text).unwrap_err();
            assert_eq!(error.failure(), Failure::Usage);
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
