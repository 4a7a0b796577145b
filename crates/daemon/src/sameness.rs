//! Whether what runs under the name of a file was started with what the file says: by its status.

use std::ffi::OsStr;

use serde_json::Value;
use stack::settings::file::URL;
use stack::settings::setting::Setting;
use stack::settings::table::rows;
use stack::status::start::StartStatus;

/// The setting that makes one disk of several units.
const STRIPE: &str = "stripe";

/// What the process with this status was started with; `None` where it does not say that.
fn of_process(status: &Value) -> Option<StartStatus> {
    let start: StartStatus = serde_json::from_value(status["start"].clone()).ok()?;
    (!start.urls.is_empty()).then_some(start)
}

/// The URLs of the process, where they are of other logical units than those of `start`.
pub fn other_units(start: &StartStatus, status: &Value) -> Option<String> {
    of_process(status).filter(|running| !are_same_units(running, start)).map(|running| running.urls.join(","))
}

/// Several URLs are paths to one logical unit, of which one that both have is enough; or a stripe of
/// several units, which another list makes another disk.
fn are_same_units(one: &StartStatus, other: &StartStatus) -> bool {
    let is_stripe = |start: &StartStatus| start.settings.contains_key(STRIPE);
    let may_share = !is_stripe(one) && !is_stripe(other);
    one.urls == other.urls || (may_share && one.urls.iter().any(|url| other.urls.contains(url)))
}

/// Keys in which the process differs from `start`, which count at its next start; `None` where it
/// does not say what it was started with.
pub fn differences(start: &StartStatus, status: &Value) -> Option<Vec<&'static str>> {
    let running = of_process(status)?;
    let url = (running.urls != start.urls).then_some(URL);
    let is_other = |setting: &&Setting| {
        let texts = [&running, start].map(|start| start.settings.get(setting.key));
        // "on" and "true", "1GiB" and "1024MiB" are the same.
        let value = |text: Option<&String>| text.and_then(|text| setting.kind.parse(OsStr::new(text)).ok());
        texts[0] != texts[1] && (value(texts[0]).is_none() || value(texts[0]) != value(texts[1]))
    };
    Some(url.into_iter().chain(rows().filter(is_other).map(|setting| setting.key)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn another_unit_is_told_from_other_settings_and_from_a_process_that_says_nothing() {
        let with = |url: &str, connections: &str, wait: &str| StartStatus {
            urls: vec![url.to_owned()],
            settings: [("connections".to_owned(), connections.to_owned()), ("wait".to_owned(), wait.to_owned())].into(),
        };
        let start = |url: &str, connections: &str| with(url, connections, "on");
        let running = json!({ "start": start("iscsi://h:3260/a/0", "2") });
        let compared = |wanted: StartStatus| (other_units(&wanted, &running), differences(&wanted, &running));
        assert_eq!(compared(start("iscsi://h:3260/a/0", "2")), (None, Some(vec![])));
        assert_eq!(compared(with("iscsi://h:3260/a/0", "2", "true")), (None, Some(vec![])));
        assert_eq!(compared(with("iscsi://h:3260/a/0", "2", "off")), (None, Some(vec!["wait"])));
        assert_eq!(compared(start("iscsi://h:3260/a/0", "3")), (None, Some(vec!["connections"])));
        let (other, keys) = compared(start("iscsi://h:3260/a/1", "2"));
        assert_eq!((other.as_deref(), keys), (Some("iscsi://h:3260/a/0"), Some(vec!["url"])));
        for said in [json!({}), json!({ "start": null }), json!({ "start": {} }), json!({ "start": 7 })] {
            let wanted = start("iscsi://h:3260/a/1", "2");
            assert_eq!((other_units(&wanted, &said), differences(&wanted, &said)), (None, None), "{said}");
        }
    }

    #[test]
    fn a_path_more_or_less_is_the_same_unit_and_a_stripe_of_others_is_not() {
        let [a, b, c] = ["iscsi://h:3260/a/0", "iscsi://i:3260/a/0", "iscsi://j:3260/a/0"];
        let start = |urls: &[&str], stripe: Option<&str>| StartStatus {
            urls: urls.iter().map(|url| (*url).to_owned()).collect(),
            settings: stripe.map(|size| (STRIPE.to_owned(), size.to_owned())).into_iter().collect(),
        };
        let is_other = |running: &StartStatus, wanted: &StartStatus| {
            let status = json!({ "start": running });
            assert_eq!(differences(wanted, &status).unwrap()[0], "url");
            other_units(wanted, &status).is_some()
        };
        for (running, wanted, is_another) in
            [(&[a][..], &[a, b][..], false), (&[b, a], &[a], false), (&[a, b], &[b, c], false), (&[a], &[b, c], true)]
        {
            assert_eq!(is_other(&start(running, None), &start(wanted, None)), is_another, "{running:?} {wanted:?}");
            let stripe = Some("64KiB");
            assert!(is_other(&start(running, stripe), &start(wanted, stripe)), "{running:?} {wanted:?}");
            assert!(is_other(&start(running, None), &start(wanted, stripe)), "{running:?} {wanted:?}");
        }
    }
}
