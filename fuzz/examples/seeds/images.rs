//! What devices hold: stores and a file system, damaged.

use fuzz::damage::{Damage, Place};

use crate::write;

pub fn write_seeds() {
    cache_image();
    log_image();
    ext2_image();
}

fn damages_seed(target: &str, name: &str, flags: u8, damages: &[(Place, u16, &[u8])]) {
    let mut bytes = vec![flags];
    for &(place, at, damage) in damages {
        Damage { place, at, bytes: damage.to_vec() }.emit(&mut bytes);
    }
    write(target, name, &bytes);
}

fn cache_image() {
    let seed =
        |name: &str, flags: u8, damages: &[(Place, u16, &[u8])]| damages_seed("cache_image", name, flags, damages);
    seed("stopped", 0, &[]);
    seed("closed", 1, &[]);
    seed("closed_write_through", 3, &[]);
    seed("record_header", 0, &[(Place::Record(1), 44, &[0, 2, 0, 0])]);
    seed("record_payload", 0, &[(Place::Record(0), 64, &[2, 0, 0xff, 0xff]), (Place::Record(2), 80, &[0xff; 8])]);
    // Magic, log position, counts of sets and ways.
    seed("superblock_position", 0, &[(Place::Superblock, 128 + 2648, &[0xff, 0xff])]);
    seed("superblock_layout", 1, &[(Place::Superblock, 128 + 2572, &[1, 0]), (Place::Superblock, 128 + 2584, &[8])]);
    seed("slot_entry", 1, &[(Place::Table(0), 64, &[0, 0, 0, 0, 0, 0, 0xff, 0xff]), (Place::Table(1), 80, &[1; 16])]);
    seed("slot_sequence", 1, &[(Place::Table(1), 16, &[0xff; 8])]);
    seed("anything", 0, &[(Place::Anything(8), 0, &[0; 64]), (Place::Anything(200), 100, &[0xa5; 200])]);
    write("cache_image", "one_copy_first", &[0b0100, 0, 0, 1, 2, 3]);
    write("cache_image", "one_copy_last", &[0b1101, 0x0f, 0, 1, 2, 3]);
}

fn log_image() {
    let seed = |name: &str, flags: u8, damages: &[(Place, u16, &[u8])]| damages_seed("log_image", name, flags, damages);
    seed("stopped", 0, &[]);
    seed("closed", 1, &[]);
    seed("closed_lba", 3, &[]);
    // The record's segment and the next one; its first entry's sector and kind.
    seed("record_head", 0, &[(Place::Record(1), 64, &[1, 0, 0, 0, 0xff, 0xff])]);
    seed("record_entry", 0, &[(Place::Record(0), 96, &[0xff; 8]), (Place::Record(2), 108, &[3])]);
    // Where replay starts; how many segments there are.
    seed("superblock_position", 0, &[(Place::Superblock, 128 + 2616, &[0xff, 0xff])]);
    seed("superblock_layout", 1, &[(Place::Superblock, 128 + 2568, &[3, 0])]);
    seed("checkpoint_counts", 0, &[(Place::Table(0), 32, &[0xff; 8]), (Place::Table(1), 36, &[0, 1])]);
    seed("checkpoint_extent", 0, &[(Place::Table(0), 88, &[0xff; 16]), (Place::Table(1), 88, &[0; 16])]);
    // Extents that overlap and reach out of their segment, as the fuzzer found them.
    seed("checkpoint_rows", 3, &[(Place::Table(10), 0x88b9, &[1, 0, 0, 0x0f, 0])]);
    // A segment that promises records which are not there: level 2 looked for them for ever.
    let promise: &[u8] = &[0xff, 0xff];
    seed(
        "checkpoint_promise",
        1,
        &[(Place::Table(0), 80, promise), (Place::Table(1), 80, promise), (Place::Table(1), 104, promise)],
    );
    // Extents that lie within each other in the log, sent in order of LBA.
    let places: &[(Place, u16, &[u8])] = &[
        (Place::Table(0), 100, &[1, 0, 0, 0]),
        (Place::Table(0), 116, &[1, 0, 0, 0]),
        (Place::Table(1), 124, &[1, 0, 0, 0]),
        (Place::Table(1), 140, &[1, 0, 0, 0]),
    ];
    seed("checkpoint_within", 3, places);
    seed("anything", 0, &[(Place::Anything(8), 0, &[0; 64]), (Place::Anything(200), 100, &[0xa5; 200])]);
    write("log_image", "one_copy_first", &[0b0100, 0, 0, 1, 2, 3]);
    write("log_image", "one_copy_last", &[0b1101, 0x0f, 0, 1, 2, 3]);
}

/// Which image, damages, and what is done then.
fn ext2_image() {
    let seed = |name: &str, image: u8, damages: &[(u16, &[u8])], actions: &[(u8, u8, u16)]| {
        let flags = (0..16).find(|low| (damages.len() as u8 * 16 + low) % 3 == image).expect("one of three");
        let mut bytes = vec![damages.len() as u8 * 16 + flags];
        for (at, damage) in damages {
            bytes.extend_from_slice(&at.to_be_bytes());
            bytes.push(damage.len() as u8);
            bytes.extend_from_slice(damage);
        }
        for (action, pick, number) in actions {
            bytes.extend_from_slice(&[*action, *pick]);
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        write("ext2_image", name, &bytes);
    };
    let all: Vec<(u8, u8, u16)> =
        (0..40_u8).map(|step| (step % 10, step.wrapping_mul(7), u16::from(step) * 900)).collect();
    seed("whole", 0, &[], &all);
    seed("whole_large_blocks", 2, &[], &all);
    seed("superblock_features", 0, &[(64 + 6, &[0xff; 4])], &all);
    seed("superblock_groups", 1, &[(64 + 2, &[1, 0, 0, 0])], &all);
    seed("orphans", 0, &[(64 + 14, &[0, 0, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0])], &all);
    seed("bitmaps", 0, &[(3 * 64, &[0; 64])], &all);
    seed("inodes", 1, &[(5 * 64 + 8 * 11, &[0xff; 100])], &all);
}
