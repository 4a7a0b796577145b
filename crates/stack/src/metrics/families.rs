//! The metric families, and the field of the status that each one shows.
//!
//! Names follow the conventions of Prometheus: a prefix, base units, `_total` for counters.
//! Families of plain values are a table; those of logical units, sessions and refused logins have
//! labels.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use target::{LatencyStatus, LunStatus, SessionActivity, SessionStatus};

use super::plain::{FamilyKind, Plain, Value, counter, gauge};
use crate::error::{Error, Failure};
use crate::fronts::KINDS;
use crate::status::ProcessStatus;
use crate::status::attachment::AttachmentStatus;
use crate::status::remote::RemoteStatus;
use crate::status::target::TargetStatus;

/// An attachment with the full status of its stores.
type Attachment = AttachmentStatus<cache::Status, writelog::Status>;

/// Families of a target.
pub const TARGET: &[Plain<Value<TargetStatus>>] = &[
    gauge("forebay_target_sessions", |it| Some(it.server.sessions.len() as u64), "Sessions."),
    gauge(
        "forebay_target_connections",
        |it| Some(it.server.connections.len() as u64),
        "Connections, those logging in included.",
    ),
    counter("forebay_target_connections_accepted", |it| Some(it.server.connections_accepted), "Connections accepted."),
    counter(
        "forebay_target_connections_refused",
        |it| Some(it.server.connections_refused),
        "Connections closed at once, for a limit.",
    ),
    counter("forebay_target_pdus_received", |it| Some(it.server.pdus_received), "PDUs received."),
    counter("forebay_target_pdus_sent", |it| Some(it.server.pdus_sent), "PDUs sent."),
    counter(
        "forebay_target_digest_errors",
        |it| Some(it.server.digest_errors),
        "Header and data digests that did not match.",
    ),
];

/// Families of an attachment. Further ones are those of its session, its stores and its fronts,
/// where it has them.
pub const ATTACHMENT: &[Plain<Value<Attachment>>] =
    &[gauge("forebay_attachment_size_bytes", |it| it.size_bytes, "Size of the logical unit.")];

/// Families of the session with a remote LUN.
pub const REMOTE: &[Plain<Value<RemoteStatus>>] = &[
    counter("forebay_remote_sessions", |it| Some(it.sessions), "Sessions begun: one more at each reconnect."),
    gauge(
        "forebay_remote_reconnect_attempts",
        |it| Some(it.reconnect_attempts.into()),
        "Attempts since the session was lost.",
    ),
    counter("forebay_remote_pdus_sent", |it| Some(it.pdus_sent), "PDUs sent."),
    counter("forebay_remote_pdus_received", |it| Some(it.pdus_received), "PDUs received."),
    counter("forebay_remote_sent_bytes", |it| Some(it.bytes_sent), "Bytes sent, headers included."),
    counter("forebay_remote_received_bytes", |it| Some(it.bytes_received), "Bytes received, headers included."),
    counter("forebay_remote_tcp_segments_sent", |it| Some(it.tcp_segments?.sent), "TCP segments sent."),
    counter("forebay_remote_tcp_segments_received", |it| Some(it.tcp_segments?.received), "TCP segments received."),
    counter(
        "forebay_remote_tcp_data_segments_sent",
        |it| Some(it.tcp_segments?.sent_with_data),
        "TCP segments sent with data; the others are acknowledgements.",
    ),
    counter(
        "forebay_remote_tcp_data_segments_received",
        |it| Some(it.tcp_segments?.received_with_data),
        "TCP segments received with data.",
    ),
    counter("forebay_remote_tcp_segments_retransmitted", |it| Some(it.tcp_segments?.retransmitted), "Sent once more."),
    counter("forebay_remote_commands", |it| Some(it.commands_sent), "SCSI commands issued, retries included."),
    counter("forebay_remote_commands_retried", |it| Some(it.commands_retried), "SCSI commands issued once more."),
    counter(
        "forebay_remote_connections_recovered",
        |it| Some(it.connections_recovered),
        "Connections that were lost while their session went on.",
    ),
    counter("forebay_remote_writes_replayed", |it| Some(it.writes_replayed), "Writes issued again after a reconnect."),
    gauge("forebay_remote_in_flight", |it| Some(it.in_flight as u64), "Commands at the target."),
    gauge("forebay_remote_waiting", |it| Some(it.waiting as u64), "Requests that wait to be issued."),
    gauge(
        "forebay_remote_retained_bytes",
        |it| Some(it.retained_bytes as u64),
        "Copies of writes that are not durable yet.",
    ),
    gauge(
        "forebay_remote_shared_alive",
        |it| Some(it.sharing.as_ref()?.is_alive.into()),
        "Whether copies of a shared logical unit may be used: 1 or 0.",
    ),
    counter(
        "forebay_remote_shared_purges",
        |it| Some(it.sharing.as_ref()?.purges),
        "Times it was asked to drop copies.",
    ),
    gauge("forebay_remote_shared_ranges_held", |it| Some(it.sharing.as_ref()?.ranges_held), "Ranges it holds alone."),
    counter(
        "forebay_remote_shared_lives",
        |it| Some(it.sharing.as_ref()?.lives),
        "Its lives as a client: one more where its copies became void.",
    ),
];

/// Families of a cache.
pub const CACHE: &[Plain<Value<cache::Status>>] = &[
    gauge("forebay_cache_lines", |it| Some(it.lines), "Size of the cache in lines."),
    gauge("forebay_cache_resident_lines", |it| Some(it.resident_lines), "Lines in use."),
    gauge("forebay_cache_valid_bytes", |it| Some(it.valid_bytes), "Bytes the cache can return."),
    gauge(
        "forebay_cache_dirty_lines",
        |it| Some(it.dirty_lines),
        "Lines with what the logical unit does not have yet.",
    ),
    gauge("forebay_cache_dirty_bytes", |it| Some(it.dirty_bytes), "Bytes that the logical unit does not have yet."),
    counter("forebay_cache_read_hits", |it| Some(it.reads.hits), "Reads answered by the cache alone."),
    counter(
        "forebay_cache_read_partial_hits",
        |it| Some(it.reads.partial_hits),
        "Reads answered by the cache in part.",
    ),
    counter("forebay_cache_read_misses", |it| Some(it.reads.misses), "Reads answered by the logical unit."),
    counter("forebay_cache_write_hits", |it| Some(it.writes.hits), "Writes to lines that were there."),
    counter("forebay_cache_write_misses", |it| Some(it.writes.misses), "Writes to lines that were not there."),
    counter("forebay_cache_evictions", |it| Some(it.evictions), "Lines replaced."),
    counter("forebay_cache_cleaned_lines", |it| Some(it.cleaned_lines), "Lines written back."),
    counter("forebay_cache_writes_delayed", |it| Some(it.writes_delayed), "Writes that waited for cleaning."),
    gauge("forebay_cache_log_bytes", |it| Some(it.log_bytes), "Size of the metadata log."),
    gauge("forebay_cache_log_used_bytes", |it| Some(it.log_used_bytes), "Use of the metadata log."),
    counter(
        "forebay_cache_device_read_errors",
        |it| Some(it.cache_read_errors),
        "Reads of the cache device that failed.",
    ),
    counter(
        "forebay_cache_device_write_errors",
        |it| Some(it.cache_write_errors),
        "Writes of the cache device that failed.",
    ),
];

/// Families of a write log.
pub const LOG: &[Plain<Value<writelog::Status>>] = &[
    gauge(
        "forebay_log_dirty_bytes",
        |it| Some(it.dirty_bytes),
        "Bytes in the write log that the logical unit does not have yet.",
    ),
    gauge("forebay_log_lost_bytes", |it| Some(it.lost_bytes), "Of these, bytes that cannot be read any more."),
    gauge(
        "forebay_log_segments_free",
        |it| Some(it.segments.free.into()),
        "Segments of the write log that take records.",
    ),
    gauge(
        "forebay_log_segments_dirty",
        |it| Some(it.segments.dirty.into()),
        "Segments with what the logical unit does not have yet.",
    ),
    gauge(
        "forebay_log_segments_valid",
        |it| Some(it.segments.valid.into()),
        "Segments with clean data that is still read.",
    ),
    gauge(
        "forebay_log_tail_bytes",
        |it| Some(it.tail_bytes),
        "Bytes that a recovery would read besides the checkpoint.",
    ),
    counter("forebay_log_written_bytes", |it| Some(it.written_bytes), "Bytes written by applications."),
    counter(
        "forebay_log_superseded_bytes",
        |it| Some(it.superseded_bytes),
        "Of these, written again before they left the log.",
    ),
    counter("forebay_log_records", |it| Some(it.records), "Records written to the log."),
    counter("forebay_log_record_bytes", |it| Some(it.record_bytes), "Bytes of these."),
    counter("forebay_log_destaged_bytes", |it| Some(it.destaged_bytes), "Bytes brought to the logical unit."),
    counter("forebay_log_destage_writes", |it| Some(it.destage_writes), "Writes that brought them."),
    counter("forebay_log_checkpoints", |it| Some(it.checkpoints), "Checkpoints of the map."),
    counter(
        "forebay_log_writes_slowed",
        |it| Some(it.writes_slowed),
        "Writes that paused because the log was filling.",
    ),
    counter("forebay_log_ram_reads", |it| Some(it.reads.ram), "Reads answered from RAM."),
    counter("forebay_log_device_reads", |it| Some(it.reads.log), "Reads answered from the log device."),
    counter("forebay_log_origin_reads", |it| Some(it.reads.origin), "Reads answered by the logical unit."),
    counter("forebay_log_mixed_reads", |it| Some(it.reads.mixed), "Reads answered by the logical unit in part."),
];

/// Families with labels: name, labels, description. For the documentation and its test.
pub const LABELLED: &[(&str, &str, &str)] = &[
    ("forebay_target_logins_refused_total", "status", "Logins refused, by status class and detail in hexadecimal."),
    ("forebay_target_session_commands_under_way", "session, initiator, target", "Commands at the logical units."),
    ("forebay_target_session_oldest_command_seconds", "session, initiator, target", "Age of the oldest of them."),
    ("forebay_target_session_data_in_bytes", "session, initiator, target", "Data-in queued or expected."),
    ("forebay_lun_operations_total", "target, lun, operation", "Commands completed: read, write, other."),
    ("forebay_lun_bytes_total", "target, lun, operation", "Bytes of data: read, write."),
    ("forebay_lun_errors_total", "target, lun, kind", "Commands that did not end with GOOD."),
    ("forebay_lun_latency_seconds", "target, lun, operation", "From a command with its data to its end: a histogram."),
    ("forebay_remote_pdu_size_bytes", "direction", "Sizes of PDUs on the wire: sent, received; a histogram."),
];

/// The metrics of a process whose status is `status`.
///
/// # Errors
/// None for a status: the text is written into memory.
pub fn render(status: ProcessStatus) -> crate::Result<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(StatusCollector(status)));
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|error| failed(&error))?;
    Ok(text)
}

fn failed(error: &dyn fmt::Display) -> Error {
    Error::new(Failure::Other, format!("the metrics: {error}"))
}

#[derive(Debug)]
struct StatusCollector(ProcessStatus);

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let status = match &self.0 {
            ProcessStatus::Target(target) => {
                plain(&mut encoder, TARGET, |value| value(target))?;
                sessions(&mut encoder, target)?;
                logins(&mut encoder, target)?;
                counts(&mut encoder, target)?;
                errors(&mut encoder, target)?;
                return latencies(&mut encoder, target);
            }
            ProcessStatus::Attachment(status) => status,
            // These have no metrics of their own.
            ProcessStatus::Mount(_) | ProcessStatus::Daemon(_) => return Ok(()),
        };
        plain(&mut encoder, ATTACHMENT, |value| value(status))?;
        plain(&mut encoder, REMOTE, |value| value(status.remote.as_ref()?))?;
        plain(&mut encoder, CACHE, |value| value(status.cache.as_ref()?))?;
        plain(&mut encoder, LOG, |value| value(status.log.as_ref()?))?;
        for kind in KINDS {
            plain(&mut encoder, kind.metrics, |value| value(&status.fronts.counters))?;
        }
        pdu_sizes(&mut encoder, status.remote.as_ref())?;
        let is_online = status.remote.as_ref().is_some_and(|remote| remote.state == "online");
        let help = "Whether the session carries requests.";
        let mut family = encoder.encode_descriptor("forebay_remote_online", help, None, MetricType::Gauge)?;
        family.encode_gauge(&u64::from(is_online))
    }
}

fn plain<A: Copy>(
    encoder: &mut DescriptorEncoder,
    families: &[Plain<A>],
    value: impl Fn(A) -> Option<u64>,
) -> fmt::Result {
    for family in families {
        let Some(value) = value(family.at) else { continue };
        match family.kind {
            FamilyKind::Counter => {
                let mut metric = encoder.encode_descriptor(family.name, family.help, None, MetricType::Counter)?;
                metric.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
            }
            FamilyKind::Gauge => {
                let mut metric = encoder.encode_descriptor(family.name, family.help, None, MetricType::Gauge)?;
                metric.encode_gauge(&value)?;
            }
        }
    }
    Ok(())
}

/// Labels of one metric.
type Labels = Vec<(&'static str, String)>;

/// The entry of [`LABELLED`] with this name, as a descriptor.
fn labelled<'s>(
    encoder: &'s mut DescriptorEncoder,
    name: &'static str,
    kind: MetricType,
) -> Result<MetricEncoder<'s>, fmt::Error> {
    let help = LABELLED.iter().find(|(known, ..)| *known == name).map_or("", |(.., help)| help);
    encoder.encode_descriptor(name.strip_suffix("_total").unwrap_or(name), help, None, kind)
}

/// A label's value, escaped for OpenMetrics (1.0, "escaped-string"): peers choose some names.
fn text(said: &str) -> String {
    said.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn sessions(encoder: &mut DescriptorEncoder, status: &TargetStatus) -> fmt::Result {
    let labels = |session: &SessionStatus| -> Labels {
        vec![
            ("session", session.tsih.to_string()),
            ("initiator", text(&session.initiator_name)),
            ("target", session.target_name.as_deref().map_or_else(String::new, text)),
        ]
    };
    type OfSession = fn(&SessionActivity) -> f64;
    let families: [(&'static str, OfSession); 3] = [
        ("forebay_target_session_commands_under_way", |activity| activity.commands_under_way as f64),
        ("forebay_target_session_oldest_command_seconds", |it| it.oldest_command_ms.unwrap_or(0) as f64 * 1e-3),
        ("forebay_target_session_data_in_bytes", |activity| activity.outstanding_data_in_bytes as f64),
    ];
    for (name, value) in families {
        let mut family = labelled(encoder, name, MetricType::Gauge)?;
        for session in &status.server.sessions {
            let value = session.activity.as_ref().map_or(0.0, value);
            family.encode_family(&labels(session))?.encode_gauge(&value)?;
        }
    }
    Ok(())
}

fn logins(encoder: &mut DescriptorEncoder, status: &TargetStatus) -> fmt::Result {
    let mut family = labelled(encoder, "forebay_target_logins_refused_total", MetricType::Counter)?;
    for (code, &count) in &status.server.logins_refused_by_status {
        count_of(&mut family, &vec![("status", code.clone())], count)?;
    }
    Ok(())
}

fn count_of(family: &mut MetricEncoder, labels: &Labels, count: u64) -> fmt::Result {
    family.encode_family(labels)?.encode_counter::<NoLabelSet, _, f64>(&count, None)
}

/// Labels of a logical unit's metric.
fn lun_labels(lun: &LunStatus, name: &'static str, value: &str) -> Labels {
    vec![("target", text(&lun.target_name)), ("lun", lun.lun.to_string()), (name, value.to_owned())]
}

/// An operation, and a counter of it.
type OfOperation = (&'static str, fn(&LunStatus) -> u64);

fn counts(encoder: &mut DescriptorEncoder, status: &TargetStatus) -> fmt::Result {
    let operations: &[OfOperation] =
        &[("read", |lun| lun.reads), ("write", |lun| lun.writes), ("other", |lun| lun.others)];
    let bytes: &[OfOperation] = &[("read", |lun| lun.read_bytes), ("write", |lun| lun.written_bytes)];
    for (name, counts) in [("forebay_lun_operations_total", operations), ("forebay_lun_bytes_total", bytes)] {
        let mut family = labelled(encoder, name, MetricType::Counter)?;
        for lun in &status.server.luns {
            for (operation, count) in counts {
                count_of(&mut family, &lun_labels(lun, "operation", operation), count(lun))?;
            }
        }
    }
    Ok(())
}

fn errors(encoder: &mut DescriptorEncoder, status: &TargetStatus) -> fmt::Result {
    let mut family = labelled(encoder, "forebay_lun_errors_total", MetricType::Counter)?;
    for lun in &status.server.luns {
        for (kind, &count) in &lun.errors {
            count_of(&mut family, &lun_labels(lun, "kind", kind), count)?;
        }
    }
    Ok(())
}

fn latencies(encoder: &mut DescriptorEncoder, status: &TargetStatus) -> fmt::Result {
    let mut family = labelled(encoder, "forebay_lun_latency_seconds", MetricType::Histogram)?;
    for lun in &status.server.luns {
        let latencies = [("read", &lun.read_latency), ("write", &lun.write_latency), ("other", &lun.other_latency)];
        for (operation, latency) in latencies {
            let Some(LatencyStatus { count, mean_ns, histogram: buckets, .. }) = latency else { continue };
            let sum = *mean_ns as f64 * 1e-9 * *count as f64;
            let labels = lun_labels(lun, "operation", operation);
            let buckets = buckets.iter().map(|bucket| (bucket.le_ns as f64 / 1e9, bucket.count));
            histogram(&mut family, &labels, *count, sum, buckets)?;
        }
    }
    Ok(())
}

fn pdu_sizes(encoder: &mut DescriptorEncoder, remote: Option<&RemoteStatus>) -> fmt::Result {
    let mut family = labelled(encoder, "forebay_remote_pdu_size_bytes", MetricType::Histogram)?;
    let Some(RemoteStatus { pdu_sizes: Some(sizes), bytes_sent, bytes_received, .. }) = remote else { return Ok(()) };
    for (direction, sizes, bytes) in [("sent", &sizes.sent, bytes_sent), ("received", &sizes.received, bytes_received)]
    {
        let labels = vec![("direction", direction.to_owned())];
        let buckets = sizes.histogram.iter().map(|bucket| (bucket.le_bytes as f64, bucket.count));
        histogram(&mut family, &labels, sizes.count, *bytes as f64, buckets)?;
    }
    Ok(())
}

/// Converts a histogram: the status counts values up to each bound, the encoder wants those between
/// two bounds. `within` holds bounds in the metric's unit, each with the count up to it.
fn histogram(
    family: &mut MetricEncoder,
    labels: &Labels,
    count: u64,
    sum: f64,
    within: impl Iterator<Item = (f64, u64)>,
) -> fmt::Result {
    let (mut buckets, mut below) = (Vec::new(), 0);
    for (bound, within) in within {
        buckets.push((bound, within.saturating_sub(below)));
        below = within;
    }
    buckets.push((f64::INFINITY, count.saturating_sub(below)));
    family.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::clock::VirtualClock;
    use base::executor::block_on;
    use block::memory::MemoryDevice;
    use block::{Identity, SharedDevice};
    use serde_json::json;
    use writelog::{FormatOptions, OpenOptions, WriteLog};

    use super::*;
    use crate::status::ShownAttachment;

    fn parsed(status: ProcessStatus) -> Vec<prometheus_parse::Sample> {
        let text = render(status).unwrap();
        assert!(text.ends_with("# EOF\n"), "{text}");
        let lines = text.lines().map(|line| Ok(line.to_owned()));
        prometheus_parse::Scrape::parse(lines).expect("it is in the format").samples
    }

    /// An attachment with only these fields.
    fn attachment(remote: serde_json::Value, log: Option<writelog::Status>) -> ProcessStatus {
        let said: ShownAttachment = serde_json::from_value(json!({ "remote": remote })).expect("it is a status");
        ProcessStatus::Attachment(Box::new(AttachmentStatus {
            name: said.name,
            pid: said.pid,
            fronts: said.fronts,
            lun: said.lun,
            size_bytes: said.size_bytes,
            logical_block_bytes: said.logical_block_bytes,
            is_read_only: said.is_read_only,
            detaching: said.detaching,
            troubles: said.troubles,
            remote: said.remote,
            stripe: said.stripe,
            multipath: said.multipath,
            cache_path: said.cache_path,
            cache_offset: said.cache_offset,
            cache_bytes: said.cache_bytes,
            cache_uuid: said.cache_uuid,
            cache: None,
            difference: said.difference,
            log_path: said.log_path,
            log_offset: said.log_offset,
            log,
            freshness: said.freshness,
            start: said.start,
            settings: said.settings,
        }))
    }

    #[test]
    fn a_targets_families_are_parsed_again() {
        let status = serde_json::from_value(json!({
            "sessions": [{ "tsih": 1, "initiator_name": "iqn.a", "target_name": null, "commands_under_way": 3 }],
            "pdus_received": 17,
            "logins_refused_by_status": { "0201": 2 },
            "luns": [{
                "target_name": "iqn.\"b\"", "lun": 0, "reads": 5, "read_bytes": 4096, "errors": { "busy": 1 },
                "read_latency": { "count": 5, "mean_ns": 2000, "histogram": [
                    { "le_ns": 10_000, "count": 3 }, { "le_ns": 20_000, "count": 4 }
                ] },
            }],
        }));
        let samples = parsed(ProcessStatus::Target(Box::new(status.expect("it is a status"))));
        let value = |name: &str, label: (&str, &str)| {
            let has = |sample: &&prometheus_parse::Sample| {
                sample.metric == name && (label.0.is_empty() || sample.labels.get(label.0) == Some(label.1))
            };
            samples.iter().find(has).map(|sample| sample.value.clone())
        };
        let number = |name: &str, label| match value(name, label) {
            Some(prometheus_parse::Value::Counter(n) | prometheus_parse::Value::Gauge(n)) => Some(n),
            Some(prometheus_parse::Value::Untyped(n)) => Some(n),
            _ => None,
        };
        assert_eq!(number("forebay_target_sessions", ("", "")), Some(1.0));
        assert_eq!(number("forebay_target_pdus_received_total", ("", "")), Some(17.0));
        assert_eq!(number("forebay_target_logins_refused_total", ("status", "0201")), Some(2.0));
        assert_eq!(number("forebay_target_session_commands_under_way", ("initiator", "iqn.a")), Some(3.0));
        assert_eq!(number("forebay_lun_operations_total", ("operation", "read")), Some(5.0));
        assert_eq!(number("forebay_lun_errors_total", ("kind", "busy")), Some(1.0));
        let Some(prometheus_parse::Value::Histogram(buckets)) = value("forebay_lun_latency_seconds", ("lun", "0"))
        else {
            panic!("there is no histogram in {samples:?}");
        };
        let counts: Vec<f64> = buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!(counts, [3.0, 4.0, 5.0]);
    }

    #[test]
    fn sizes_of_pdus_are_a_histogram_for_each_direction() {
        let sizes = |count| {
            json!({ "count": count, "histogram": [
            { "le_bytes": 63, "count": 2 }, { "le_bytes": 127, "count": 2 }, { "le_bytes": 255, "count": count }
        ] })
        };
        let remote = json!({
            "pdu_sizes": { "sent": sizes(5), "received": sizes(7) }, "bytes_sent": 600, "bytes_received": 900,
            "tcp_segments": { "sent": 4, "sent_with_data": 3 },
        });
        let samples = parsed(attachment(remote, None));
        let of = |direction: &str| {
            let has = |sample: &&prometheus_parse::Sample| {
                let is_family = sample.metric == "forebay_remote_pdu_size_bytes";
                is_family && sample.labels.get("direction") == Some(direction)
            };
            match &samples.iter().find(has).expect("it is there").value {
                prometheus_parse::Value::Histogram(buckets) => {
                    buckets.iter().map(|bucket| (bucket.less_than, bucket.count)).collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(of("sent"), [(63.0, 2.0), (127.0, 2.0), (255.0, 5.0), (f64::INFINITY, 5.0)]);
        assert_eq!(of("received"), [(63.0, 2.0), (127.0, 2.0), (255.0, 7.0), (f64::INFINITY, 7.0)]);
        let value = |name: &str| samples.iter().find(|sample| sample.metric == name).map(|sample| &sample.value);
        assert_eq!(value("forebay_remote_tcp_data_segments_sent_total"), Some(&prometheus_parse::Value::Untyped(3.0)));
    }

    #[test]
    fn where_the_kernel_does_not_tell_nothing_is_said_of_segments() {
        let samples = parsed(attachment(json!({ "pdus_sent": 4 }), None));
        assert!(samples.iter().any(|sample| sample.metric == "forebay_remote_pdus_sent_total"));
        assert!(!samples.iter().any(|sample| sample.metric.starts_with("forebay_remote_tcp")));
    }

    #[test]
    fn who_shares_its_unit_with_others_has_families_of_that_and_who_does_not_has_none() {
        let sharing = json!({ "client": "1.2", "is_alive": true, "purges": 3, "ranges_held": 4, "lives": 2 });
        let shown = |remote| {
            let samples = parsed(attachment(remote, None));
            let of_sharing = samples.iter().filter(|sample| sample.metric.starts_with("forebay_remote_shared"));
            of_sharing
                .map(|sample| match &sample.value {
                    prometheus_parse::Value::Gauge(value)
                    | prometheus_parse::Value::Counter(value)
                    | prometheus_parse::Value::Untyped(value) => (sample.metric.clone(), *value as u64),
                    other => panic!("{other:?}"),
                })
                .collect::<std::collections::BTreeMap<_, _>>()
        };
        let named = |name: &str| format!("forebay_remote_shared_{name}");
        let expected = [("alive", 1), ("purges_total", 3), ("ranges_held", 4), ("lives_total", 2)];
        assert_eq!(shown(json!({ "sharing": sharing })), expected.map(|(name, value)| (named(name), value)).into());
        assert!(shown(json!({ "pdus_sent": 4 })).is_empty());
    }

    #[test]
    fn a_front_has_the_families_of_its_kind_and_those_of_others_are_left_out() {
        let mut status = attachment(json!(null), None);
        if let ProcessStatus::Attachment(status) = &mut status {
            status.fronts.counters.add("nbd", front::NbdCounters::default());
        }
        let samples = parsed(status);
        let of = |prefix: &str| samples.iter().filter(|sample| sample.metric.starts_with(prefix)).count();
        assert_eq!((of("forebay_nbd_read_bytes"), of("forebay_nbd"), of("forebay_fuse")), (1, 5, 0));
    }

    #[test]
    fn an_attachment_without_a_cache_has_no_families_of_it() {
        let samples = parsed(attachment(json!({ "state": "online", "sessions": 1 }), None));
        assert!(samples.iter().any(|sample| sample.metric == "forebay_remote_online"));
        let is_of_store = |name: &str| name.starts_with("forebay_cache") || name.starts_with("forebay_log");
        assert!(!samples.iter().any(|sample| is_of_store(&sample.metric)));
    }

    #[test]
    fn a_write_log_has_families() {
        let memory = || -> SharedDevice { Arc::new(MemoryDevice::new(4 << 20, Identity::default())) };
        let (device, origin) = (memory(), memory());
        let opened = block_on(async move {
            WriteLog::format(&device, &origin, FormatOptions::default()).await?;
            WriteLog::open(device, origin, OpenOptions::new(Arc::new(VirtualClock::new()))).await
        });
        let mut status = opened.expect("nothing fails").status();
        (status.dirty_bytes, status.segments.free, status.reads.log) = (4096, 3, 7);
        let samples = parsed(attachment(json!({ "state": "online" }), Some(status)));
        let value = |name: &str| samples.iter().find(|sample| sample.metric == name).map(|sample| &sample.value);
        assert_eq!(value("forebay_log_dirty_bytes"), Some(&prometheus_parse::Value::Gauge(4096.0)));
        assert_eq!(value("forebay_log_segments_free"), Some(&prometheus_parse::Value::Gauge(3.0)));
        let reads = value("forebay_log_device_reads_total");
        assert!(
            matches!(reads, Some(prometheus_parse::Value::Counter(7.0) | prometheus_parse::Value::Untyped(7.0))),
            "{reads:?}"
        );
    }

    /// `docs/reference/metrics.md` lists all families.
    #[test]
    fn every_family_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        let page = std::fs::read_to_string(path).expect("the page is there");
        let of_target = TARGET.iter().map(|family| (family.name, family.kind));
        let of_attachment = ATTACHMENT.iter().map(|family| (family.name, family.kind));
        let of_remote = REMOTE.iter().map(|family| (family.name, family.kind));
        let of_stores = CACHE
            .iter()
            .map(|family| (family.name, family.kind))
            .chain(LOG.iter().map(|family| (family.name, family.kind)));
        let of_fronts = KINDS.iter().flat_map(|kind| kind.metrics).map(|family| (family.name, family.kind));
        for (name, kind) in of_target.chain(of_attachment).chain(of_remote).chain(of_stores).chain(of_fronts) {
            let suffix = if kind == FamilyKind::Counter { "_total" } else { "" };
            let row = format!("| `{name}{suffix}` |");
            assert!(page.contains(&row), "{row} is missing");
        }
        for (name, labels, _) in LABELLED {
            let row = format!("| `{name}` | {labels} |");
            assert!(page.contains(&row), "{row} is missing");
        }
    }

    #[test]
    fn a_name_cannot_end_its_label() {
        assert_eq!(text("iqn.a"), "iqn.a");
        assert_eq!(text("a\"} 1\nforged 2 \\"), "a\\\"} 1\\nforged 2 \\\\");
    }
}
