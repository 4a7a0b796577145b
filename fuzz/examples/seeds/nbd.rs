//! Both ends of NBD.

use fuzz::nbd_script::{Item, Script, Setup};
use nbd::wire::handshake::{BASE_ALLOCATION, GoRequest, MetaContextRequest, option as code};

use crate::write;

pub fn write_seeds() {
    server_requests();
    server_handshakes();
    client_simple();
    client_structured();
    client_handshake();
}

fn server(name: &str, setup: Setup, items: Vec<Item>) {
    write("nbd_server", name, &Script { setup, items }.emit());
}

fn client(name: &str, setup: Setup, items: Vec<Item>) {
    write("nbd_client", name, &Script { setup, items }.emit());
}

fn simple() -> Setup {
    Setup { is_negotiated: true, ..Setup::default() }
}

fn structured() -> Setup {
    Setup { is_structured: true, ..simple() }
}

fn request(flags: u16, command: u8, offset: u32, length: u32) -> Item {
    Item::Request { flags, command, offset, length }
}

fn answer(kind: u8, chunk: u16, payload: &[u8]) -> Item {
    Item::Answer { index: 0, kind, chunk, payload: payload.to_vec() }
}

fn option(code: u32, data: &[u8]) -> Item {
    Item::Option { code, data: data.to_vec() }
}

fn server_requests() {
    let requests: Vec<Item> =
        (0..8).filter(|&command| command != 2).map(|command| request(0, command, 4096, 8)).collect();
    let answered =
        [requests, vec![answer(1, 0, &[3]), answer(2, 0, &[1, 2, 3]), answer(0, 0, &[]), Item::Leave]].concat();
    server("requests_simple", simple(), answered.clone());
    server("requests_structured", structured(), answered.clone());
    server("requests_read_only", Setup { is_read_only: true, read_bytes: 3, ..structured() }, answered);
}

fn server_handshakes() {
    let mut go = Vec::new();
    GoRequest { name: "", requests: vec![0, 1, 2, 3] }.emit(&mut go);
    let mut contexts = Vec::new();
    MetaContextRequest { name: "disk", queries: vec!["base:", BASE_ALLOCATION] }.emit(&mut contexts);
    server(
        "handshake",
        Setup::default(),
        vec![
            Item::Raw(vec![0, 0, 0, 3]),
            option(code::LIST, &[]),
            option(code::STARTTLS, &[]),
            option(code::STRUCTURED_REPLY, &[]),
            option(code::LIST_META_CONTEXT, &contexts),
            option(code::SET_META_CONTEXT, &contexts),
            option(code::INFO, &go),
            option(code::GO, &go),
            request(0, 0, 0, 1),
            request(0, 2, 0, 0),
        ],
    );
    server(
        "export_name",
        Setup::default(),
        vec![Item::Raw(vec![0, 0, 0, 1]), option(code::EXPORT_NAME, b"disk"), request(0, 0, 0, 1), answer(1, 0, &[])],
    );
}

fn client_simple() {
    client(
        "simple",
        simple(),
        vec![
            request(0, 0, 4096, 511),
            answer(0, 0, &[]),
            request(1, 1, 4096, 511),
            answer(0, 0, &[]),
            request(0, 3, 0, 0),
            answer(5, 0, &[]),
            request(0, 0, 0, 1),
            Item::Leave,
        ],
    );
}

fn client_structured() {
    let offset = 4096u64.to_be_bytes();
    client(
        "structured",
        structured(),
        vec![
            request(0, 0, 4096, 511),
            answer(128, 0x0001, &offset),
            answer(128, 0x0100, &[]),
            request(0, 0, 4096, 511),
            answer(128, 0x0102, &[&offset[..], &512u32.to_be_bytes()].concat()),
            request(0, 7, 0, 4095),
            answer(128, 0x0105, &[&1u32.to_be_bytes()[..], &[0, 0, 16, 0, 0, 0, 0, 3]].concat()),
            request(0, 4, 0, 4095),
            answer(128, 0x8101, &[0, 0, 0, 5, 0, 2, b'n', b'o']),
        ],
    );
    client(
        "structured_in_small_reads",
        Setup { read_bytes: 3, ..structured() },
        vec![
            request(0, 0, 4096, 511),
            answer(128, 0x0001, &[&offset[..], &[7; 100]].concat()),
            answer(128, 0x0102, &[&4196u64.to_be_bytes()[..], &412u32.to_be_bytes()].concat()),
        ],
    );
}

fn client_handshake() {
    client(
        "handshake_refused",
        Setup { is_structured: true, ..Setup::default() },
        vec![
            Item::Raw(b"NBDMAGICIHAVEOPT\0\x03".to_vec()),
            option(0x8000_0001, b"not here"),
            option(3, &[0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0]),
            option(3, &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]),
            option(1, &[]),
            request(0, 0, 0, 511),
        ],
    );
}
