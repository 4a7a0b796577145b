//! Writes the seeds: inputs that go deep from the start. `cargo run --example seeds` in this folder writes
//! `seeds/TARGET/NAME`; what it wrote is committed, so that fuzzing needs no build of this.

mod images;
mod iscsi_bytes;
mod iscsi_initiator;
mod iscsi_session;
mod iscsi_target;
mod nbd;
mod pdus;
mod scsi_cdb;
mod sharing;
mod texts;

use std::path::Path;

fn write(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    std::fs::write(folder.join(name), bytes).expect("the file can be written");
}

fn main() {
    images::write_seeds();
    iscsi_bytes::write_seeds();
    iscsi_initiator::write_seeds();
    iscsi_session::write_seeds();
    iscsi_target::write_seeds();
    nbd::write_seeds();
    scsi_cdb::write_seeds();
    sharing::write_seeds();
    texts::write_seeds();
}
