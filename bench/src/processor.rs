//! The processors of a process, and its processor time: of a running process, and of children that
//! ended.

use std::process::Command;

use crate::Result;

/// The beginning of a command that runs on `cpus` only, a list as taskset takes it; the program and
/// its arguments follow.
pub fn on_processors(cpus: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", cpus]);
    command
}

/// Processor time of all threads of a process so far, in microseconds
/// (`/proc/PID/task/TID/schedstat`, first field, in nanoseconds).
pub fn of_process_us(id: u32) -> Result<f64> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir(format!("/proc/{id}/task"))? {
        // A thread may end meanwhile.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        nanoseconds += text.split_whitespace().next().ok_or("schedstat is empty")?.parse::<u64>()?;
    }
    Ok(nanoseconds as f64 / 1000.0)
}

/// Processor time of the children that ended and were waited for, in microseconds, in steps of a
/// tick (`/proc/self/stat`, fields 16 and 17).
pub fn of_ended_children_us() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    // The name, in parentheses, may hold anything.
    let (_, fields) = text.rsplit_once(')').ok_or("no name in /proc/self/stat")?;
    let mut ticks = fields.split_whitespace().skip(13).map(str::parse::<u64>);
    let (Some(user), Some(system)) = (ticks.next(), ticks.next()) else {
        return Err("/proc/self/stat is short".into());
    };
    Ok((user? + system?) as f64 * 1e6 / rustix::param::clock_ticks_per_second() as f64)
}
