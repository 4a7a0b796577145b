//! What people write: sizes, addresses, files of targets, traces.

use crate::write;

pub fn write_seeds() {
    text_forms();
    target_file();
    traces();
}

fn text_forms() {
    for (name, text) in [
        ("size", "1.5GiB"),
        ("portal", "[fe80::1%eth0]:3261"),
        ("url", "iscsi://user@[::1]:3260/iqn.2026-01.io.forebay:disk/16383"),
        ("url_password", "iscsi://user%secret@host/iqn.2026-01.io.forebay:disk/0"),
        ("lun_ram", "0=ram:1MiB,disk=7200rpm,seek=8.5ms,rotation=100us,transfer=20MB/s,write-cache"),
        ("lun_file", "3=file:/srv/a=b.img,size=10GiB,direct,read-only,block=4096"),
    ] {
        write("text_forms", name, text.as_bytes());
    }
}

fn target_file() {
    for (name, text) in [
        (
            "one",
            "[[target]]\niqn = \"iqn.2026-11.org.example:a\"\nluns = [\"0=ram:1MiB,thin,removable\", \"1=file:/a b\"]\n",
        ),
        (
            "portals_and_chap",
            "# c\nportals = [\"127.0.0.1:3260\", \"[::1]:1\"]\n[[target]]\niqn = 'a'\nluns = []\nchap-user = \"u\"\n\
             chap-file = \"/f\"\n[[target]]\niqn = \"b\"\nluns = [\"3=file:c,size=1GiB,block=4096,physical=4096\"]\n",
        ),
        ("unknown_key", "[[target]]\niqn = \"a\"\nluns = []\nport = 1\n"),
    ] {
        write("target_file", name, text.as_bytes());
    }
}

/// Of a trace: the number of its format, and with which device its requests are (see `fuzz_targets/trace.rs`).
const NAMED_AS_BLKPARSE_DOES: u8 = 0x80;
const NAMED_AS_OTHERS_DO: u8 = 0xc0;

/// A write of 4096 bytes at block 0x010203, at 1.5 s, in both layouts of vscsiStats.
const VSCSI_1: [u8; 32] =
    [7, 0, 0, 0, 0, 0x10, 0, 0, 1, 0, 0, 0, 0x2a, 0, 5, 1, 3, 2, 1, 0, 0, 0, 0, 0, 0x60, 0xe3, 0x16, 0, 0, 0, 0, 0];
const VSCSI_2: [u8; 40] = [
    0x2a, 0, 5, 2, 7, 0, 0, 0, 0, 0x10, 0, 0, 1, 0, 0, 0, 3, 2, 1, 0, 0, 0, 0, 0, 0x60, 0xe3, 0x16, 0, 0, 0, 0, 0,
    0x40, 1, 0, 0, 0, 0, 0, 0,
];

fn traces() {
    let blkparse = "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]\n  8,0    3        9     \
                    1.000020000   700  Q  RM 8 + 16 [a b]\n  8,0    1       11     1.500040000   700  Q FWFSM 16 + 8 \
                    [jbd2/sda1-8]\nCPU0 (sda):\n";
    for (name, choice, text) in [
        ("cloud_physics", 0, "version,time,op,size,lbn\n1,100,2a,512,7\n1,100,28,6656,8\r\n\n1,102,88,4096,1\n"),
        ("blkparse", NAMED_AS_BLKPARSE_DOES | 1, blkparse),
        (
            "iolog_2",
            2,
            "fio version 2 iolog\n/dev/sdb add\n/dev/sdb open\n/dev/sdb write 0 4096\n/dev/sdb wait 1000000\n\
                     /dev/sdb read 4096 512\n/dev/sdb sync 0 0\n/dev/sdb close\n",
        ),
        ("iolog_3", 2, "fio version 3 iolog\n0 /dev/sdb add\n5 /dev/sdb open\n2000000 /dev/sdb trim 0 4096\n"),
        ("msr", 3, "128166372003061629,hm,1,Read,383496192,32768,413\n128166372016382155,hm,1,Write,2822144,4096,1\n"),
        ("spc", NAMED_AS_OTHERS_DO | 4, "0,20941264,8192,W,0.5\n1,7,512,r,0.551706\n0,20939840,8192,R,0.75,more\n"),
        ("arc", 5, "1 8 0 0\n50 1 0 1\n"),
        ("mqsim", NAMED_AS_OTHERS_DO | 6, "1000000 0 2056 8 0\n1500000 1 7 1 1\n1750000 0 16 24 1\n"),
    ] {
        write("trace", name, &[&[choice][..], text.as_bytes()].concat());
    }
    for (name, record) in [("vscsi_1", &VSCSI_1[..]), ("vscsi_2", &VSCSI_2)] {
        write("trace", name, &[&[7], record, record].concat());
    }
}
