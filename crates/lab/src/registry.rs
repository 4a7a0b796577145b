//! Every experiment, by name.

use std::path::Path;

use crate::error::LabError;
use crate::outcome::{Clock, Found, Outcome};
use crate::stage::{Scale, Stage};
use crate::{icache, icache_postmark, iscsi_design, packet_sizes, sharing};

/// The function of an experiment that runs as processes.
type OnStage = fn(&Stage, Scale) -> Result<Found, LabError>;

/// One experiment.
pub struct Experiment {
    /// Its name, after the paper's figure.
    pub name: &'static str,
    /// Paper and figure.
    pub source: &'static str,
    /// The paper's result.
    pub found: &'static str,
    /// The meaning of the horizontal axis.
    pub across: &'static str,
    /// Unit of the result.
    pub unit: &'static str,
    /// What it needs besides this program; without that it fails at once.
    pub needs: Option<&'static str>,
    pub(crate) in_virtual_time: Option<fn(Scale) -> Result<Found, LabError>>,
    pub(crate) on_this_machine: Option<OnStage>,
}

/// All experiments.
pub const REGISTRY: &[Experiment] = &[
    Experiment {
        name: "packet-sizes",
        source: "A Caching Strategy to Improve iSCSI Performance, section 1",
        found: "58 % of the TCP/IP packets of a typical iSCSI implementation are shorter than 127 bytes",
        across: "KiB of a request",
        unit: "% of packets",
        needs: Some("root, ip and /dev/net/tun"),
        in_virtual_time: None,
        on_this_machine: Some(packet_sizes::shares),
    },
    Experiment {
        name: "icache-postmark",
        source: "A Caching Strategy to Improve iSCSI Performance, figure 4",
        found: "PostMark, blocks of 512 bytes to 4 KiB, a small and a large pool: 53 to 78 % more transactions a \
                second with the log",
        across: "block bytes",
        unit: "transactions/s",
        needs: Some("root, PostMark, nbdfuse, fusermount3, losetup and mkfs.ext2; in full it takes hours"),
        in_virtual_time: None,
        on_this_machine: Some(icache_postmark::throughput),
    },
    Experiment {
        name: "icache-counts",
        source: "A Caching Strategy to Improve iSCSI Performance, figure 5a",
        found: "230,370 requests: most within 0.5 ms with the log; without it 4 ms and more",
        across: "up to ms",
        unit: "requests",
        needs: None,
        in_virtual_time: Some(icache::counts),
        on_this_machine: None,
    },
    Experiment {
        name: "icache-response",
        source: "A Caching Strategy to Improve iSCSI Performance, figure 5b",
        found: "over 80 % within 1 ms with the log, about 10 % over 8 ms, peaks of 120 ms; without it 99 % over 4 ms, \
                46 % over 8",
        across: "within ms",
        unit: "% of requests",
        needs: None,
        in_virtual_time: Some(icache::shares),
        on_this_machine: None,
    },
    Experiment {
        name: "icache-groups",
        source: "A Caching Strategy to Improve iSCSI Performance, figure 6",
        found: "means of 1000 requests; of all: 3.652 ms with the log, 6.757 without",
        across: "thousand requests",
        unit: "ms",
        needs: None,
        in_virtual_time: Some(icache::groups),
        on_this_machine: None,
    },
    Experiment {
        name: "multi-throughput",
        source: "An iSCSI Design and Implementation, figure 5",
        found: "128 KiB, RAM: several connections 20 to 60 % over one; 70-80 MB/s with frames of 1.5k, 97-107 of 9k",
        across: "connections",
        unit: "MB/s",
        needs: None,
        in_virtual_time: None,
        on_this_machine: Some(iscsi_design::multi_throughput),
    },
    Experiment {
        name: "frame-size",
        source: "An iSCSI Design and Implementation, figure 6",
        found: "128 KiB, RAM: little gain past frames of 3k; the initiator's CPU always above the target's",
        across: "frame bytes",
        unit: "MB/s",
        needs: None,
        in_virtual_time: Some(iscsi_design::frame_size_model),
        on_this_machine: Some(iscsi_design::frame_size),
    },
    Experiment {
        name: "queue-depth",
        source: "An iSCSI Design and Implementation, figure 7",
        found: "1 KiB: 4,000 IOPS at depth 2, 15,000 from depth 8",
        across: "depth",
        unit: "IOPS",
        needs: None,
        in_virtual_time: Some(iscsi_design::queue_depth_model),
        on_this_machine: Some(iscsi_design::queue_depth),
    },
    Experiment {
        name: "metro",
        source: "An iSCSI Design and Implementation, figure 8",
        found: "128 KiB, disk, 0.6 ms round trip: 67 MB/s with small frames, 2 to 5 % below the lab",
        across: "round trip ms",
        unit: "MB/s",
        needs: None,
        in_virtual_time: Some(iscsi_design::metro_model),
        on_this_machine: Some(iscsi_design::metro),
    },
    Experiment {
        name: "connection-kinds",
        source: "An iSCSI Design and Implementation, section 2",
        found: "several connections, of requests and of responses, over one",
        across: "connections",
        unit: "MB/s",
        needs: None,
        in_virtual_time: None,
        on_this_machine: Some(iscsi_design::connection_kinds),
    },
    Experiment {
        name: "share-overhead",
        source: "An Efficient Data Sharing Scheme for iSCSI-Based File Systems, figure 3",
        found: "100 MB written in sequence: the whole time falls as blocks grow, that of locks as block groups grow",
        across: "blocks of a group",
        unit: "s",
        needs: None,
        in_virtual_time: Some(sharing::overhead),
        on_this_machine: None,
    },
    Experiment {
        name: "share-readers",
        source: "An Efficient Data Sharing Scheme for iSCSI-Based File Systems, section 4.2",
        found: "10 blocks, one writer, 1 to 3 readers, 3600 s: the more readers, the longer the writer waits for a \
                block",
        across: "readers",
        unit: "ms",
        needs: None,
        in_virtual_time: Some(sharing::readers),
        on_this_machine: None,
    },
];

/// The experiment of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    REGISTRY.iter().find(|experiment| experiment.name == name)
}

impl Experiment {
    /// The clocks it runs by.
    pub fn clocks(&self) -> Vec<Clock> {
        let model = self.in_virtual_time.map(|_| Clock::Virtual);
        let machine = self.on_this_machine.map(|_| Clock::Real);
        model.into_iter().chain(machine).collect()
    }

    /// Runs the experiment. `program` is the `forebay` binary, needed in real time only.
    ///
    /// # Errors
    /// A clock that the experiment does not run by; errors of its processes.
    pub fn run(&self, clock: Clock, scale: Scale, program: &Path) -> Result<Outcome, LabError> {
        let (rows, notes) = match clock {
            Clock::Virtual => self.in_virtual_time.ok_or(LabError::NoModel(self.name))?(scale)?,
            Clock::Real => {
                let run = self.on_this_machine.ok_or(LabError::NoStage(self.name))?;
                run(&Stage::new(program)?, scale)?
            }
        };
        Ok(Outcome {
            name: self.name.to_owned(),
            source: self.source.to_owned(),
            found: self.found.to_owned(),
            clock,
            across: self.across.to_owned(),
            unit: self.unit.to_owned(),
            rows,
            notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different() {
        for experiment in REGISTRY {
            assert_eq!(find(experiment.name).map(|found| found.source), Some(experiment.source));
            assert!(!experiment.clocks().is_empty());
        }
    }
}
