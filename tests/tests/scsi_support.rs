//! `docs/protocol/scsi.md` is printed from the table of operation codes, so that it cannot drift: every command the
//! table has is in the page, with how much of it is supported and the test that shows it. `FOREBAY_PRINT_DOCS=1` writes
//! the page anew.

use std::fmt::Write as _;
use std::path::Path;

use scsi::cdb::table::{ROWS, Row};

/// How much of a command there is.
#[derive(Clone, Copy)]
enum Support {
    Yes,
    /// All but this.
    But(&'static str),
}

use Support::{But, Yes};

const NO_PROTECTION: Support = But("no protection information");
const WRITE_SAME: &str =
    "no ANCHOR; zero blocks refused (WSNZ); where not zeroes, others reach the blocks between two pieces";

/// By the start of the command's name, the first that fits: support, and the test (a family of `iscsi-test-cu`, or a
/// function of ours).
const REMARKS: &[(&str, Support, &str)] = &[
    ("TEST UNIT READY", Yes, "TestUnitReady"),
    ("REQUEST SENSE", Yes, "control_commands.rs"),
    ("READ(6)", Yes, "Read6"),
    ("READ(10)", NO_PROTECTION, "Read10"),
    ("READ(12)", NO_PROTECTION, "Read12"),
    ("READ(16)", NO_PROTECTION, "Read16"),
    ("WRITE(6)", Yes, "data_commands.rs"),
    ("WRITE(10)", NO_PROTECTION, "Write10"),
    ("WRITE(12)", NO_PROTECTION, "Write12"),
    ("WRITE(16)", NO_PROTECTION, "Write16"),
    ("INQUIRY", But("VPD pages 00h 80h 83h 86h 87h 8Fh B0h B1h B2h, and forebay's own C0h and C1h"), "Inquiry"),
    ("MODE SELECT", But("changeable: SWP, D_SENSE, WCE on volatile caches; nothing is saved"), "ModeSense6"),
    ("MODE SENSE", But("pages 01h 08h 0Ah 1Ch; no saved values"), "ModeSense6"),
    ("RESERVE(6)", But("the whole unit; no third party"), "Reserve6"),
    ("RELEASE(6)", But("the whole unit; no third party"), "Reserve6"),
    ("START STOP UNIT", But("power conditions do nothing"), "StartStopUnit"),
    ("PREVENT ALLOW MEDIUM REMOVAL", Yes, "PreventAllow"),
    ("READ CAPACITY(10)", Yes, "ReadCapacity10"),
    ("READ CAPACITY(16)", Yes, "ReadCapacity16"),
    ("WRITE AND VERIFY(10)", NO_PROTECTION, "WriteVerify10"),
    ("WRITE AND VERIFY(12)", NO_PROTECTION, "WriteVerify12"),
    ("WRITE AND VERIFY(16)", NO_PROTECTION, "WriteVerify16"),
    ("VERIFY(10)", NO_PROTECTION, "Verify10"),
    ("VERIFY(12)", NO_PROTECTION, "Verify12"),
    ("VERIFY(16)", NO_PROTECTION, "Verify16"),
    ("PRE-FETCH(10)", But("reads nothing ahead; registers copies of a client of a shared unit"), "Prefetch10"),
    ("PRE-FETCH(16)", But("reads nothing ahead; registers copies of a client of a shared unit"), "Prefetch16"),
    ("SYNCHRONIZE CACHE", But("flushes the whole unit, whatever the range"), "NoMedia"),
    ("READ DEFECT DATA(10)", But("both lists are empty"), "ReadDefectData10"),
    ("READ DEFECT DATA(12)", But("both lists are empty"), "ReadDefectData12"),
    ("WRITE SAME(10)", But(WRITE_SAME), "WriteSame10"),
    ("WRITE SAME(16)", But(WRITE_SAME), "WriteSame16"),
    ("UNMAP", But("thin units; no ANCHOR"), "Unmap"),
    ("SANITIZE, BLOCK ERASE", But("thin units"), "Sanitize"),
    ("SANITIZE", Yes, "Sanitize"),
    ("LOG SENSE", But("pages 00h and 2Fh"), "whole_unit_commands.rs"),
    ("PERSISTENT RESERVE IN", Yes, "PrinReadKeys"),
    ("PERSISTENT RESERVE OUT, REGISTER AND MOVE", Yes, "reservation/tests.rs"),
    ("PERSISTENT RESERVE OUT, REGISTER", But("APTPL on file and block device units; no ALL_TG_PT"), "ProutRegister"),
    ("PERSISTENT RESERVE OUT, CLEAR", Yes, "ProutClear"),
    ("PERSISTENT RESERVE OUT, PREEMPT", Yes, "ProutPreempt"),
    ("PERSISTENT RESERVE OUT", Yes, "ProutReserve"),
    ("EXTENDED COPY", But("block to block, within this target"), "ExtendedCopy"),
    ("RECEIVE COPY RESULTS", Yes, "ReceiveCopyResults"),
    ("COMPARE AND WRITE", NO_PROTECTION, "CompareAndWrite"),
    ("ORWRITE", NO_PROTECTION, "OrWrite"),
    ("WRITE ATOMIC", But("RAM units, up to the largest transfer; no atomic boundary"), "WriteAtomic16"),
    ("GET LBA STATUS", Yes, "GetLBAStatus"),
    ("REPORT LUNS", Yes, "control_commands.rs"),
    ("REPORT TARGET PORT GROUPS", But("one group, active and optimized"), "whole_unit_commands.rs"),
    ("REPORT SUPPORTED OPERATION CODES", Yes, "ReportSupportedOpcodes"),
    ("REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", Yes, "control_commands.rs"),
    ("CHANGE MARK IN", But("forebay's own: see `change-marks.md`"), "change_marks.rs"),
    ("CHANGE MARK OUT", But("forebay's own: see `change-marks.md`"), "change_marks.rs"),
    ("SHARING IN", But("forebay's own: see `sharing.md`"), "sharing.rs"),
    ("SHARING OUT", But("forebay's own: see `sharing.md`"), "sharing.rs"),
];

/// Commands of SPC-4 and SBC-3 for disks that are not there, and why.
const ABSENT: &[(&str, &str)] = &[
    ("FORMAT UNIT, REASSIGN BLOCKS", "there is no format and no defect to manage; SANITIZE wipes"),
    ("SANITIZE, CRYPTOGRAPHIC ERASE", "nothing is encrypted"),
    ("RESERVE(10), RELEASE(10)", "obsolete; RESERVE(6) and persistent reservations are there"),
    ("READ LONG, WRITE LONG, READ BUFFER, WRITE BUFFER", "no medium and no microcode of their own"),
    ("SET TARGET PORT GROUPS", "states change by no explicit command"),
    ("XDWRITE, XPWRITE, 32-byte commands", "no protection information, no RAID below"),
    ("POPULATE TOKEN, WRITE USING TOKEN", "EXTENDED COPY(LID1) is the copy there is"),
];

/// What of SAM-5 is there, and the test.
const MODEL: &[(&str, &str, &str)] = &[
    ("SIMPLE, ORDERED, HEAD OF QUEUE tasks", "yes", "ordered_tasks_wait_for_all_older_ones_and_hold_back_younger_ones"),
    ("overlapping commands in order", "yes", "overlapping_commands_run_in_the_order_they_came"),
    ("TASK SET FULL", "yes, at 4096 tasks; a name that has none gets one beyond that", "a_full_set_says_so"),
    ("unit attentions, one queue per I_T nexus", "yes", "each_condition_is_told_once_to_each_nexus"),
    ("MODE PARAMETERS CHANGED, to the other nexuses", "yes", "software_write_protection_is_set_told_and_reset"),
    ("CAPACITY DATA HAS CHANGED, POWER ON after lost writes", "yes", "events_of_the_device_become_unit_attentions"),
    ("the same to the very next command", "yes", "what_the_device_has_said_counts_for_the_next_command"),
    ("REPORTED LUNS DATA HAS CHANGED", "yes", "units_come_and_go_and_everybody_is_told"),
    ("SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT", "yes", "commands_cleared_with_their_connection_are_told"),
    ("RESERVATIONS RELEASED, PREEMPTED; REGISTRATIONS PREEMPTED", "yes", "reservation/tests.rs"),
    ("errors of the device as sense data", "yes", "errors_map_by_kind"),
    ("ACA", "not: NormACA is 0", "CLEAR ACA is refused"),
];

/// What of SPC-4 and SBC-3 is there beside commands, and the test.
const UNIT: &[(&str, &str, &str)] = &[
    ("the VPD pages that Linux 6.12 reads", "yes", "the_pages_that_linux_reads_are_there"),
    ("page 88h (SCSI ports)", "not: page 83h names the port a command came through", "Inquiry"),
    (
        "REPORT LUNS, all select reports",
        "yes; administrative logical units (10h to 12h) are refused",
        "lists_of_units_in_every_form",
    ),
    (
        "blocks of 512 and 4096 bytes, physical block exponent",
        "yes",
        "logical_and_physical_blocks_in_every_combination",
    ),
    (
        "lowest aligned LBA, transfer and unmap granularity, rotation",
        "yes, as the device says",
        "what_the_device_likes_is_told",
    ),
    (
        "LBPRZ",
        "yes, where the device's discards read as zeroes",
        "discards_that_promise_nothing_are_not_told_as_zeroes",
    ),
    ("SPACE ALLOCATION FAILED WRITE PROTECT", "yes", "a_thin_file_on_a_full_file_system_says_so"),
    ("thin provisioning thresholds", "not: what a file system has left is not the unit's alone", "Unmap"),
    ("WCE changeable", "yes, on volatile caches", "a_volatile_cache_can_be_switched_off_and_on"),
    ("APTPL over a SIGKILL", "yes, files and block devices", "reservations_of_a_block_device_survive_kill_nine"),
    ("APTPL on RAM units", "not: a RAM unit is another one after a restart", "a_ram_unit_refuses_to_keep_reservations"),
    (
        "removable medium",
        "yes; an ejected one is loaded at the next start",
        "an_ejected_medium_is_loaded_at_the_next_start",
    ),
    ("log pages", "00h, 2Fh; nothing is counted that others could tell", "there_are_no_defects_and_two_logs"),
];

fn remark(row: &Row) -> (Support, &'static str) {
    let fitting = REMARKS.iter().find(|(name, _, _)| row.name.starts_with(name));
    let (_, support, test) = fitting.unwrap_or_else(|| panic!("{} has no remark in this test", row.name));
    (*support, test)
}

fn page() -> String {
    let mut page = String::from(
        "# SCSI commands\n\nPrinted by `tests/tests/scsi_support.rs` from the table of operation codes in \
         `crates/scsi/src/cdb/table.rs`. A test named without\n\
         `.rs` is a family of `iscsi-test-cu` (see `iscsi-test-cu.md`).\n\n| code | command | supported | test \
         |\n|---|---|---|---|\n",
    );
    for row in ROWS {
        let action = row.service_action.map_or(String::new(), |action| format!("/{action:02X}h"));
        let (support, test) = remark(row);
        let support = match support {
            Yes => "yes".to_owned(),
            But(what) => format!("partly: {what}"),
        };
        writeln!(page, "| {:02X}h{action} | {} | {support} | `{test}` |", row.operation_code, row.name)
            .expect("a string takes everything");
    }
    page.push_str("\nNot there:\n\n| command | why |\n|---|---|\n");
    for (name, why) in ABSENT {
        writeln!(page, "| {name} | {why} |").expect("a string takes everything");
    }
    page.push_str("\n| of SAM-5 | | test |\n|---|---|---|\n");
    for (what, support, test) in MODEL {
        writeln!(page, "| {what} | {support} | `{test}` |").expect("a string takes everything");
    }
    page.push_str("\n| of SPC-4 and SBC-3 beside commands | | test |\n|---|---|---|\n");
    for (what, support, test) in UNIT {
        writeln!(page, "| {what} | {support} | `{test}` |").expect("a string takes everything");
    }
    page
}

#[test]
fn the_page_is_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol/scsi.md");
    let printed = page();
    if std::env::var_os("FOREBAY_PRINT_DOCS").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(there, printed, "run FOREBAY_PRINT_DOCS=1 cargo test -p tests --test scsi_support");
}

#[test]
fn every_remark_is_about_a_command() {
    for (name, _, _) in REMARKS {
        assert!(ROWS.iter().any(|row| row.name.starts_with(name)), "{name} is no command");
    }
}
