//! The fronts of an attachment.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The fronts of an attachment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Received")]
pub struct FrontsStatus {
    /// The addresses of the fronts, in the form that applications take, separated by spaces.
    pub address: String,
    /// The place of the first one.
    pub front: Option<String>,
    /// Each front.
    pub fronts: Vec<FrontStatus>,
    /// The counters of all kinds.
    #[serde(flatten)]
    pub counters: FrontCounters,
}

/// The counters of all fronts of each kind together, under the name of the kind. Each kind knows its
/// own counters; here they are what is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct FrontCounters(BTreeMap<String, Value>);

/// One front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrontStatus {
    /// Its kind.
    pub kind: String,
    /// Its place, in the form of `--as` without the kind.
    pub place: String,
    /// Its address for applications.
    pub address: String,
    /// Count of its applications.
    pub clients: u64,
    /// Of these, applications that have an outdated size of the device.
    pub clients_outdated: u64,
}

/// The status as it is read: its counters are beside others of the attachment.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Received {
    address: String,
    front: Option<String>,
    fronts: Vec<FrontStatus>,
    #[serde(flatten)]
    beside: BTreeMap<String, Value>,
}

impl From<Received> for FrontsStatus {
    fn from(received: Received) -> Self {
        let Received { address, front, fronts, mut beside } = received;
        beside.retain(|name, _| fronts.iter().any(|front| front.kind == *name));
        Self { address, front, fronts, counters: FrontCounters(beside) }
    }
}

impl FrontCounters {
    /// The counters of the kind of this name; `None` where there is no such front.
    pub(crate) fn of<C: DeserializeOwned>(&self, kind: &str) -> Option<C> {
        C::deserialize(self.0.get(kind)?).ok()
    }

    /// Adds those of one front of the kind of this name.
    pub(crate) fn add<C: AddAssign + Serialize + DeserializeOwned>(&mut self, kind: &str, counters: C) {
        let mut sum = counters;
        if let Some(others) = self.of::<C>(kind) {
            sum += others;
        }
        self.0.insert(kind.to_owned(), json!(sum));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a kind may have them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Counted {
        requests: u64,
    }

    impl AddAssign for Counted {
        fn add_assign(&mut self, other: Self) {
            self.requests += other.requests;
        }
    }

    #[test]
    fn counters_of_one_kind_are_added_and_read_as_they_are_written_without_what_is_beside_them() {
        let mut counters = FrontCounters::default();
        counters.add("door", Counted { requests: 2 });
        counters.add("door", Counted { requests: 3 });
        let fronts = vec![FrontStatus { kind: "door".to_owned(), ..FrontStatus::default() }];
        let mut status = json!(FrontsStatus { fronts, counters: counters.clone(), ..FrontsStatus::default() });
        assert_eq!(status["door"], json!({ "requests": 5 }));
        assert_eq!(counters.of::<Counted>("window"), None, "there is no such front");
        status["cache"] = json!({ "requests": 7 });
        let read = serde_json::from_value::<FrontsStatus>(status).unwrap().counters;
        assert_eq!((read.of("door"), &read), (Some(Counted { requests: 5 }), &counters));
    }
}
