//! Fronts: the ways in which local applications reach a device. One stack may have several, of one
//! or more kinds, each at its own place.
//!
//! | module | holds |
//! |---|---|
//! | [`kind`] | what a front is |
//! | `nbd` | the NBD server |
//! | `kernel_nbd` | a disk of the kernel's NBD client: one more place of that kind |
//! | `fuse` | the file |
//! | `iscsi` | the gateway: a target with the device as its one logical unit |
//! | `settings` | the settings of all of them, with those that a kind keeps beside itself |
//! | [`options`] | what is made of these |
//! | here | the table of kinds, and all fronts of one attachment |
//!
//! A front is a file here and a row in [`KINDS`]. All other code (`--as`, status, metrics, the
//! start and the end of an attachment) uses only these.

use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{join_all, select_all};
use tokio::sync::watch::Sender;

use crate::error::{Error, Failure, Result};
use crate::flag::wait_until;
use crate::limits::{FRONTS_MAX, TURN_AWAY_PAUSE};
use crate::status::FrontInUse;
use crate::status::fronts::{FrontCounters, FrontStatus, FrontsStatus};

#[cfg(test)]
mod broken;
mod fuse;
mod gateway_name;
mod iscsi;
mod kernel_nbd;
pub mod kind;
mod nbd;
pub mod options;
pub(crate) mod settings;

#[cfg(test)]
pub(crate) use broken::{broken, unopenable};

use kind::{Front, FrontConfig, FrontKind, Served, clients_in_words};
use options::FrontOptions;

/// Every kind there is.
pub static KINDS: &[&FrontKind] = &[&nbd::KIND, &fuse::KIND, &iscsi::KIND];

/// A choice for `auto`: a description, the kind, and its place.
type Choice = (&'static str, &'static FrontKind, fn(&dyn Fn(&str) -> PathBuf) -> std::result::Result<String, String>);

/// The best first: the one that most programs can use as a disk.
static BEST: &[Choice] = &[
    ("disk of the kernel", &nbd::KIND, kernel_nbd::usual),
    ("FUSE file", &fuse::KIND, fuse::usual),
    ("NBD socket", &nbd::KIND, nbd::usual),
];

/// Parses `KIND:PLACE`, a kind alone for its usual place, or `auto` for the best kind that is
/// available here.
///
/// # Errors
/// An unknown kind, or a place that it does not take, in words.
pub fn parse(text: &str, usual: &dyn Fn(&str) -> PathBuf) -> std::result::Result<FrontConfig, String> {
    let refusal = || {
        let places: Vec<&str> = KINDS.iter().map(|kind| kind.places).collect();
        format!("use {} or auto", places.join(", "))
    };
    let of = |name: &str| KINDS.iter().find(|kind| kind.name == name).copied().ok_or_else(refusal);
    let (kind, place) = match text.split_once(':') {
        None if text == "auto" => best(BEST, usual)?,
        None => {
            let kind = of(text)?;
            (kind, (kind.usual)(usual).map_err(|_| refusal())?)
        }
        Some((name, place)) => {
            let kind = of(name)?;
            (kind, (kind.place)(place)?)
        }
    };
    Ok(FrontConfig { kind, place, options: FrontOptions::default() })
}

/// The first choice that is available here, with its place. Logs the choice, and why no better one
/// is available.
fn best(
    choices: &[Choice],
    usual: &dyn Fn(&str) -> PathBuf,
) -> std::result::Result<(&'static FrontKind, String), String> {
    let mut lacking = Vec::new();
    for (name, kind, place) in choices {
        match place(usual) {
            Ok(place) => {
                let why = lacking.join("; ");
                tracing::info!(front = format!("{}:{place}", kind.name), why, "auto has chosen a {name}");
                return Ok((kind, place));
            }
            Err(why) => lacking.push(format!("no {name}: {why}")),
        }
    }
    Err(format!("auto finds nothing here: {}", lacking.join("; ")))
}

/// Who used a front, in words; as another version of the program may report it.
pub fn in_words(used: &FrontInUse) -> String {
    let FrontInUse { kind, place, users } = used;
    match KINDS.iter().find(|known| known.name == kind) {
        Some(kind) => (kind.users)(place, *users),
        None => clients_in_words(kind, place, *users),
    }
}

/// What of an attachment `forebay mount` takes, in words.
pub(crate) const MOUNTABLE: &str = "the file of --as fuse:PATH, or the disk of --as nbd:/dev/nbdN";

/// The fronts of an attachment. Clones are the same fronts.
#[derive(Clone)]
pub struct Fronts(Rc<[Box<dyn Front>]>);

impl Fronts {
    /// Opens each front's listener.
    ///
    /// # Errors
    /// A place that is taken; `Usage` for none, or too many.
    pub fn listen(configs: &[FrontConfig]) -> Result<Self> {
        if configs.is_empty() || configs.len() > FRONTS_MAX {
            let message = format!("an attachment has 1 to {FRONTS_MAX} fronts, not {}", configs.len());
            return Err(Error::new(Failure::Usage, message));
        }
        Ok(Self::of(configs.iter().map(|config| (config.kind.listen)(config)).collect::<Result<_>>()?))
    }

    /// The given fronts.
    pub(crate) fn of(fronts: Vec<Box<dyn Front>>) -> Self {
        Self(fronts.into())
    }

    /// Their addresses, in the form that applications take.
    pub fn addresses(&self) -> Vec<String> {
        self.0.iter().map(|front| front.address()).collect()
    }

    /// Their places, in the form of `--as` without the kinds.
    pub fn places(&self) -> Vec<String> {
        self.0.iter().map(|front| front.place()).collect()
    }

    /// Opens all of them: from then on applications find the device there.
    ///
    /// # Errors
    /// The error of the first front that fails.
    pub fn open(&self, served: &Served) -> Result<()> {
        let open = |front: &dyn Front| {
            let name = format!("the {} front at {}", front.kind().name, front.place());
            front.open(served).map_err(|error| Error::io(name, &error))
        };
        self.0.iter().try_for_each(|front| open(front.as_ref()))
    }

    /// Closes every new connection, until it is dropped.
    pub async fn turn_away(&self) {
        loop {
            let (turned_away, ..) = select_all(self.0.iter().map(|front| front.turn_away())).await;
            if let Err(error) = turned_away {
                tracing::warn!(%error, "an application could not be turned away");
                tokio::time::sleep(TURN_AWAY_PAUSE).await;
            }
        }
    }

    /// Serves at all of them until `stop` is raised, and ends when each has finished its requests.
    /// One that ends earlier does not end the others.
    ///
    /// # Errors
    /// The error of the first front that ended with one.
    pub async fn serve(&self, served: Served, stop: &Sender<bool>) -> Result<()> {
        let serving = self.0.iter().map(|front| {
            let served = served.clone();
            async move {
                let ended = front.serve(served, Box::pin(wait_until(stop))).await;
                let name = format!("the {} front at {}", front.kind().name, front.place());
                if !*stop.borrow() {
                    tracing::error!(error = ended.as_ref().err().map(tracing::field::display), "{name} has ended");
                }
                ended.map_err(|error| Error::io(name, &error))
            }
        });
        let serving = pin!(join_all(serving));
        serving.await.into_iter().collect()
    }

    /// Those that applications use now.
    pub(crate) fn in_use(&self) -> Vec<FrontInUse> {
        let one = |front: &dyn Front| FrontInUse {
            kind: front.kind().name.to_owned(),
            place: front.place(),
            users: front.users(),
        };
        self.0.iter().map(|front| one(front.as_ref())).filter(|front| front.users > 0).collect()
    }

    /// Their part of the status.
    pub fn status(&self) -> FrontsStatus {
        let one = |front: &dyn Front| {
            let clients = front.clients();
            FrontStatus {
                kind: front.kind().name.to_owned(),
                place: front.place(),
                address: front.address(),
                clients: clients.open,
                clients_outdated: clients.outdated,
            }
        };
        let mut counters = FrontCounters::default();
        self.0.iter().for_each(|front| front.count(&mut counters));
        FrontsStatus {
            address: self.addresses().join(" "),
            front: self.places().first().cloned(),
            fronts: self.0.iter().map(|front| one(front.as_ref())).collect(),
            counters,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::device::DeviceExt;
    use block::memory::MemoryDevice;
    use block::{Buffer, Identity};
    use front::Exported;

    use super::*;
    use crate::settings::find;

    #[test]
    fn a_place_is_asked_for_by_its_kind_and_every_kind_is_named_where_there_is_none() {
        let usual = &|kind: &str| PathBuf::from(format!("/run/forebay/disk.{kind}"));
        assert_eq!(parse("nbd", usual).unwrap().place, "unix:/run/forebay/disk.nbd");
        let local = parse("nbd:127.0.0.1:0", usual).unwrap();
        assert_eq!((local.kind.name, local.place.as_str()), ("nbd", "127.0.0.1:0"));
        assert!(parse("nbd:unix:a", usual).unwrap().place.starts_with("unix:/"), "it is found from elsewhere");
        for text in ["ublk:/dev", "iscsi", ""] {
            let why = parse(text, usual).unwrap_err();
            assert!(KINDS.iter().all(|kind| why.contains(kind.places)), "{why}");
        }
        assert!(parse("fuse:disk", usual).unwrap().place.starts_with('/'), "so is a file");
        assert_eq!(parse("nbd:/dev/nbd3", usual).unwrap().place, "/dev/nbd3");
        assert!(parse("nbd:nowhere", usual).is_err() && parse("nbd:/dev/sda", usual).is_err());
        assert!(parse("fuse:", usual).is_err());
        let help = find("front").unwrap().help;
        assert!(KINDS.iter().all(|kind| help.contains(kind.places)), "{help}");
    }

    #[test]
    fn auto_is_the_first_that_can_be_had_and_says_why_there_is_none() {
        let usual = &|kind: &str| PathBuf::from(format!("/run/forebay/disk.{kind}"));
        let broken: Choice = ("thing", &nbd::KIND, |_| Err("it is broken".to_owned()));
        let (kind, place) = best(&[broken, BEST[2]], usual).unwrap();
        assert_eq!((kind.name, place.as_str()), ("nbd", "unix:/run/forebay/disk.nbd"));
        let nothing = best(&[broken], usual).map(drop).unwrap_err();
        assert_eq!(nothing, "auto finds nothing here: no thing: it is broken");
    }

    #[tokio::test]
    async fn a_front_that_ends_leaves_the_others() {
        let local = parse("nbd:127.0.0.1:0", &|_| PathBuf::new()).unwrap();
        let fronts = Fronts::of(vec![broken(), (local.kind.listen)(&local).unwrap()]);
        let place = fronts.places()[1].parse().unwrap();
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        let served =
            Served { exported: Exported::alone(Arc::new(MemoryDevice::new(1 << 20, identity))), compares_below: None };
        let stop = Sender::new(false);
        let using = async {
            let (client, driver) = front::NbdClient::connect(&place).await.unwrap();
            let driver = tokio::spawn(driver);
            client.write(0, Buffer::copy_of(&[1; 512]), false).await.unwrap();
            let users: Vec<(String, u64)> = fronts.in_use().into_iter().map(|used| (used.kind, used.users)).collect();
            assert_eq!(users, [("nbd".to_owned(), 1)], "who has it is named");
            drop(client);
            stop.send_replace(true);
            driver.abort();
        };
        let (ended, ()) = tokio::join!(fronts.serve(served, &stop), using);
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("the broken front at nowhere"), "{error}");
    }

    #[test]
    fn an_attachment_has_some_fronts_and_not_too_many() {
        let local = parse("nbd:127.0.0.1:0", &|_| PathBuf::new()).unwrap();
        for count in [0, FRONTS_MAX + 1] {
            let refused = Fronts::listen(&vec![local.clone(); count]).map(drop).unwrap_err();
            assert_eq!(refused.failure(), Failure::Usage);
            assert!(refused.to_string().contains("1 to 8 fronts"), "{refused}");
        }
    }
}
