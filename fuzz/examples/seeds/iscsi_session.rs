//! A whole session of a target: several connections, recovery, task management.

use fuzz::session_script::{Kind, Script, Setup, Step, flag};

use crate::write;

pub fn write_seeds() {
    reads_and_writes();
    recovery_within_a_connection();
    order_over_connections();
    recovery_of_connections();
    aborts();
    slow();
}

fn emit(name: &str, setup: Setup, steps: Vec<Step>) {
    write("iscsi_session", name, &Script { setup, steps }.emit());
}

fn level(level: u8) -> Setup {
    Setup { level, has_data_digest: true, ..Setup::default() }
}

fn read(amount: u16) -> Step {
    Step::new(Kind::Command, 0, 0, amount)
}

fn write_of(flags: u8, amount: u16) -> Step {
    Step::new(Kind::Command, 0, flag::WRITE | flags, amount)
}

fn data(flags: u8, amount: u16) -> Step {
    Step::new(Kind::Data, 0, flags, amount)
}

const ALL: Step = Step::new(Kind::AllData, 0, 0, 0);

fn done(amount: u16) -> Step {
    Step::new(Kind::Complete, 0, 0, amount)
}

const MANAGED: Step = Step::new(Kind::Managed, 0, 0, 0);

fn join(pick: u8) -> Step {
    Step::new(Kind::Join, pick, 0, 0)
}

const LOSE: Step = Step::new(Kind::Lose, 0, 0, 0);

fn manage(pick: u8, amount: u16) -> Step {
    Step::new(Kind::Manage, pick, flag::IMMEDIATE, amount)
}

fn log_out(pick: u8, amount: u16) -> Step {
    Step::new(Kind::Logout, pick, flag::IMMEDIATE, amount)
}

fn snack(tag: u8, kind: u8, amount: u16) -> Step {
    Step::new(Kind::Snack, tag << 2 | kind, 0, amount)
}

fn wait(amount: u16) -> Step {
    Step::new(Kind::Wait, 0, 0, amount)
}

const LAG: Step = Step::new(Kind::Acknowledge, 0, flag::GAP, 0);

fn reads_and_writes() {
    for at in 0..3 {
        emit(
            &format!("reads_and_writes_{at}"),
            level(at),
            vec![read(8), write_of(0, 20), ALL, done(4096), done(0), write_of(flag::OPEN, 0x4010), ALL, ALL, done(0)],
        );
    }
}

fn recovery_within_a_connection() {
    emit(
        "lost_data_level_1",
        level(1),
        vec![
            write_of(0, 8),
            data(flag::GAP, 500),
            data(0, 500),
            ALL,
            ALL,
            ALL,
            done(0),
            write_of(0, 8),
            data(64, 9),
            ALL,
        ],
    );
    emit(
        "snacks",
        level(1),
        vec![
            LAG,
            read(8),
            done(4096),
            snack(0, 0, 0),
            snack(0, 0, 0x0102),
            Step::new(Kind::Snack, 1, flag::GAP, 0),
            snack(0, 3, 0x0100),
            snack(0, 2, 0x0400),
            write_of(0, 20),
            snack(1, 0, 0),
            ALL,
        ],
    );
}

fn order_over_connections() {
    emit(
        "order_over_connections",
        level(0),
        vec![
            join(2),
            Step::new(Kind::Command, 0, flag::GAP, 1).on(1),
            read(2),
            Step::new(Kind::Command, 0, flag::FILL, 1),
            done(512),
            done(512),
            done(512),
            log_out(1, 1),
            join(3),
            read(3).on(1),
            done(9),
        ],
    );
}

fn recovery_of_connections() {
    emit(
        "reassign",
        level(2),
        vec![
            join(2),
            read(8),
            write_of(0, 16),
            LOSE,
            log_out(9, 0),
            manage(7, 0),
            manage(7, 1),
            done(4096),
            ALL,
            done(0),
        ],
    );
    emit(
        "all_lost_and_back",
        level(2),
        vec![read(8), write_of(0, 16), LOSE, wait(500), join(1), manage(7, 0), manage(7, 1), ALL, done(4096), done(0)],
    );
    emit(
        "reinstated",
        level(2),
        vec![join(2), write_of(0, 16), join(1), manage(7, 0), ALL, done(0), LOSE, wait(30_000), read(1)],
    );
}

fn aborts() {
    emit(
        "aborts",
        level(2),
        vec![
            join(2),
            read(4),
            read(4).on(1),
            manage(0, 0),
            done(1),
            MANAGED,
            manage(4, 0),
            done(1),
            MANAGED,
            write_of(0, 20),
            manage(5, 0),
            wait(2500),
            MANAGED,
            manage(1, 0),
            manage(10, 0),
            MANAGED,
        ],
    );
}

fn slow() {
    let slow = Setup { is_slow: true, is_tight: true, has_header_digest: true, ..level(1) };
    let some = Step::new(Kind::Transmit, 0, 0, 700);
    emit("slow", slow, vec![read(20), some, write_of(0, 20), done(9000), some, ALL, some, done(0), some, LOSE, some]);
}
