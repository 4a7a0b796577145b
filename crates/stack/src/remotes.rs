//! The far side of a stack: one remote LUN, or several that are one device.
//!
//! Whatever they make together, each of them is a LUN of its own: it is locked on this host, and the registry of dirty caches knows it
//! by its own name, too. So a member of a striped set with a dirty cache in front is refused alone, as any LUN with a dirty cache is.

use std::future::Future;
use std::sync::Arc;

use base::clock::Clock;
use block::layer::stripe::Stripe;
use block::{Device, ErrorKind, Identity, SharedDevice};
use initiator::{RemoteLun, State, Status};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::error::{Error, Failure, Result};
use crate::remote::{RemoteConfig, status_json};

/// How several LUNs are one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// There is one.
    Single,
    /// Units on each in turn (RAID-0).
    Stripe {
        /// Bytes of a unit.
        unit_bytes: u64,
    },
}

/// LUNs, in order, and what they make together.
#[derive(Clone, Debug)]
pub struct RemotesConfig {
    /// How to reach each; at least one, and exactly one when they are not arranged.
    pub remotes: Vec<RemoteConfig>,
    /// What they make together.
    pub arrangement: Arrangement,
}

/// Connected LUNs as one device.
pub struct Remotes {
    luns: Vec<Arc<RemoteLun>>,
    whole: Whole,
    _background: Option<Background>,
}

enum Whole {
    Single,
    Stripe(Arc<Stripe>),
}

/// Ends with what it serves.
struct Background(JoinHandle<()>);

impl Background {
    fn start(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RemotesConfig {
    /// Logs in everywhere. The sessions are kept up on the current runtime until they are closed.
    ///
    /// # Errors
    /// What stands in the way of one of them, or of what they are to make together; then all are closed again.
    pub async fn connect(&self, clock: &Arc<dyn Clock>) -> Result<Remotes> {
        let mut luns = Vec::with_capacity(self.remotes.len());
        let arranged = match connect_each(&self.remotes, clock, &mut luns).await {
            Ok(()) => self.arrange(&luns),
            Err(error) => Err(error),
        };
        match arranged {
            Ok((whole, background)) => Ok(Remotes { luns, whole, _background: background }),
            Err(error) => {
                close_each(&luns).await;
                Err(error)
            }
        }
    }

    fn arrange(&self, luns: &[Arc<RemoteLun>]) -> Result<(Whole, Option<Background>)> {
        match self.arrangement {
            Arrangement::Single => Ok((Whole::Single, None)),
            Arrangement::Stripe { unit_bytes } => {
                let members: Vec<SharedDevice> = luns.iter().cloned().map(|lun| lun as SharedDevice).collect();
                let stripe = Arc::new(Stripe::new(members, unit_bytes).map_err(refusal)?);
                let running = Arc::clone(&stripe);
                let background = Background::start(async move { running.run().await });
                Ok((Whole::Stripe(stripe), Some(background)))
            }
        }
    }
}

/// What makes no sense about an arrangement is a matter of the command line.
fn refusal(error: block::Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidRange => Error::new(Failure::Usage, error.to_string()),
        _ => error.into(),
    }
}

async fn connect_each(configs: &[RemoteConfig], clock: &Arc<dyn Clock>, luns: &mut Vec<Arc<RemoteLun>>) -> Result<()> {
    for config in configs {
        luns.push(config.connect(clock).await?);
    }
    Ok(())
}

async fn close_each(luns: &[Arc<RemoteLun>]) {
    for lun in luns {
        lun.close().await;
    }
}

impl Remotes {
    /// The device they make.
    pub fn device(&self) -> SharedDevice {
        match &self.whole {
            Whole::Single => self.luns.first().expect("nothing is connected without a LUN").clone(),
            Whole::Stripe(stripe) => stripe.clone(),
        }
    }

    /// Who the device is.
    pub fn identity(&self) -> Identity {
        self.device().identity()
    }

    /// Who the device is, and who each LUN is where that differs.
    pub fn identities(&self) -> Vec<Identity> {
        let mut identities = vec![self.identity()];
        for identity in self.luns.iter().map(|lun| lun.identity()) {
            if !identities.contains(&identity) {
                identities.push(identity);
            }
        }
        identities
    }

    /// Changes how many connections, or pairs of them, each LUN's session has.
    pub fn set_connections(&self, count: u16) {
        self.luns.iter().for_each(|lun| lun.set_connections(count));
    }

    /// Flushes what the LUNs might lose and logs out.
    pub async fn close(&self) {
        close_each(&self.luns).await;
    }

    /// The state of the LUN that is worst off: what the whole can be relied on for.
    pub fn status(&self) -> Value {
        let statuses: Vec<Status> = self.luns.iter().map(|lun| lun.status()).collect();
        let worst = statuses.iter().find(|status| status.state != State::Online).or_else(|| statuses.first());
        worst.map_or(Value::Null, status_json)
    }

    /// The members of a stripe; `null` without.
    pub fn stripe_status(&self) -> Value {
        let Whole::Stripe(stripe) = &self.whole else { return Value::Null };
        let members: Vec<Value> = stripe
            .members()
            .iter()
            .zip(&self.luns)
            .map(|(member, lun)| {
                let Identity { target, unit, serial } = &member.identity;
                json!({
                    "lun": { "target": target, "unit": unit, "serial": serial },
                    "size_bytes": member.size_bytes,
                    "unused_bytes": member.unused_bytes,
                    "is_online": member.is_online,
                    "remote": status_json(&lun.status()),
                })
            })
            .collect();
        json!({ "unit_bytes": stripe.layout().unit_bytes, "members": members })
    }
}
