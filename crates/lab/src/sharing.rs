//! *An Efficient Data Sharing Scheme for iSCSI-Based File Systems*, section 4, in virtual time:
//! what sharing costs a client that is alone, and what readers cost a writer.
//!
//! Its figure 3 is a drawing without numbers, and section 4.2 describes the readers in words. One
//! number follows from its table 4: without a cache reading took 5785.5 s, with one 29.5 s and
//! 724,888 reads less, so a block took 7.94 ms.

use std::time::Duration;

use locks::settings::Profile;

use crate::error::LabError;
use crate::outcome::{Found, Row, Span};
use crate::sharing_model::{Load, Machines, Spent};
use crate::stage::Scale;

/// Milliseconds of a block from the target in the paper's simulation, (5785.5 s - 29.5 s) / 724,888.
const BLOCK_MS: Span = Span::exactly(7.94);
/// Section 4.2.
const BLOCK_BYTES: u64 = 4096;
const SHARED_BLOCKS: u64 = 10;
const READERS_MAX: usize = 3;
const TIME: Duration = Duration::from_secs(3600);
const TIME_QUICK: Duration = Duration::from_secs(20);
/// Section 4.1.
const FILE_BYTES: u64 = 100 << 20;
const FILE_BYTES_QUICK: u64 = 4 << 20;
const BLOCK_SIZES: [u64; 4] = [1 << 10, 4 << 10, 16 << 10, 64 << 10];
const GROUP_SIZES: [u64; 4] = [1, 4, 16, 64];
/// Size of a command, where a command may have several blocks.
const COMMAND_BYTES: u64 = 64 << 10;
/// More than writing any file takes.
const TIME_ENOUGH: Duration = Duration::from_secs(1_000_000);

const PROFILES: [(&str, Profile); 2] = [("paper's profile", Profile::Paper), ("ours", Profile::Usual)];

/// The time of a write by one writer while so many readers read the same blocks.
pub(crate) fn readers(scale: Scale) -> Result<Found, LabError> {
    let mut rows = vec![block_alone(scale)];
    let mut notes = vec![MODEL.to_owned(), READERS.to_owned()];
    for (name, profile) in PROFILES {
        for readers in 0..=READERS_MAX {
            let spent = Machines::new(load(profile, readers, scale)).run();
            let writer = spent[0];
            let parts =
                [("", writer.total()), (", locks", writer.locking), (", block", writer.reading + writer.writing)];
            rows.extend(parts.into_iter().filter(|(_, time)| !time.is_zero()).map(|(part, time)| {
                row("a write", format!("{name}{part}"), readers as f64, None, writer.each_ms(time))
            }));
            notes.push(words(name, readers, &spent));
        }
    }
    Ok((rows, notes))
}

const MODEL: &str = "our lock manager, gate and clients; links of 100 Mbit/s and 1 ms; table 3's disk: 2.0 ms, 3.6 ms \
                     to read, 3.9 ms to write, 62 MB/s, no cache";
const READERS: &str = "10 blocks of 4 KiB, groups of one block, each access a transaction of any of them, nobody \
                       rests; at 0 readers nobody is in the way";

fn load(profile: Profile, readers: usize, scale: Scale) -> Load {
    Load {
        profile,
        block_bytes: BLOCK_BYTES,
        blocks: SHARED_BLOCKS,
        group_blocks: 1,
        command_blocks: 1,
        writers: 1,
        readers,
        is_one_transaction: false,
        caches: true,
        time_max: if scale == Scale::Full { TIME } else { TIME_QUICK },
    }
}

/// The number that checks the model: the read of a block that the reader has no copy of.
fn block_alone(scale: Scale) -> Row {
    let load = Load { writers: 0, caches: false, time_max: TIME_QUICK, ..load(Profile::Paper, 1, scale) };
    let reader = Machines::new(load).run()[0];
    row("a block from the target", "paper's profile".to_owned(), 0.0, Some(BLOCK_MS), reader.each_ms(reader.reading))
}

fn words(name: &str, readers: usize, spent: &[Spent]) -> String {
    let reads: u64 = spent[1..].iter().map(|reader| reader.accesses).sum();
    let hits: u64 = spent[1..].iter().map(|reader| reader.hits).sum();
    format!("{name}, {readers} readers: {} writes, {reads} reads, {hits} of them from copies", spent[0].accesses)
}

/// The time of a sequential write of a file, by the size of blocks and of groups: locks, reading,
/// writing.
pub(crate) fn overhead(scale: Scale) -> Result<Found, LabError> {
    let bytes = if scale == Scale::Full { FILE_BYTES } else { FILE_BYTES_QUICK };
    let mut rows = Vec::new();
    for block_bytes in BLOCK_SIZES {
        for (name, profile) in PROFILES {
            for group_blocks in GROUP_SIZES {
                let spent = write_file(profile, bytes, block_bytes, group_blocks);
                let parts = [
                    ("", spent.total()),
                    (", locks", spent.locking),
                    (", reading", spent.reading),
                    (", writing", spent.writing),
                ];
                let panel = format!("blocks of {} KiB", block_bytes >> 10);
                rows.extend(parts.map(|(part, time)| {
                    row(&panel, format!("{name}{part}"), group_blocks as f64, None, time.as_secs_f64())
                }));
            }
        }
    }
    Ok((rows, vec![MODEL.to_owned(), OVERHEAD.to_owned()]))
}

const OVERHEAD: &str = "one transaction writes a file from its beginning to its end, and reads each block first. The \
                        paper's profile: one block a command, one lock a request. Ours: 64 KiB a command, up to 63 \
                        groups a request";

fn write_file(profile: Profile, bytes: u64, block_bytes: u64, group_blocks: u64) -> Spent {
    let command_blocks = profile.blocks_of_command_max().unwrap_or(COMMAND_BYTES / block_bytes);
    let load = Load {
        profile,
        block_bytes,
        blocks: bytes / block_bytes,
        group_blocks,
        command_blocks,
        writers: 1,
        readers: 0,
        is_one_transaction: true,
        caches: true,
        time_max: TIME_ENOUGH,
    };
    Machines::new(load).run()[0]
}

fn row(panel: &str, series: String, at: f64, paper: Option<Span>, ours: f64) -> Row {
    Row { panel: panel.to_owned(), series, at, paper, ours, client_cpu_us: None, server_cpu_us: None }
}
