//! The settings of a write log that change while it runs: `forebay set NAME log.KEY=VALUE`.

use writelog::WriteLog;

use crate::cache_settings::{parse, parse_size};
use crate::error::{Error, Failure, Result};
use crate::log_place::DestageConfig;
use crate::lun_spec::parse_duration;

/// Every key, as messages name them.
pub const KEYS: &[&str] = &[
    "log.destage-start",
    "log.destage-full-speed",
    "log.destage-idle",
    "log.destage-age",
    "log.destage-batch",
    "log.destage-writes",
];

/// Changes when data leaves for the LUN, and how fast, from the next batch on.
///
/// # Errors
/// `Usage` when `key` is no such setting, or the value is none of its values.
pub fn set(log: &WriteLog, key: &str, value: &str) -> Result<()> {
    let chosen = DestageConfig::default();
    let chosen = match key {
        "log.destage-start" => DestageConfig { start: Some(parse(value)?), ..chosen },
        "log.destage-full-speed" => DestageConfig { full_speed: Some(parse(value)?), ..chosen },
        "log.destage-idle" => DestageConfig { idle: Some(duration(value)?), ..chosen },
        "log.destage-age" => DestageConfig { age_max: Some(duration(value)?), ..chosen },
        "log.destage-batch" => DestageConfig { batch_bytes: Some(parse_size(value)?), ..chosen },
        "log.destage-writes" => DestageConfig { writes: Some(parse(value)?), ..chosen },
        _ => return Err(Error::new(Failure::Usage, format!("\"{key}\" is no setting of a write log"))),
    };
    chosen.check("log.destage-")?;
    log.set_level2(chosen.over(log.level2()));
    Ok(())
}

fn duration(value: &str) -> Result<std::time::Duration> {
    parse_duration(value).map_err(|message| Error::new(Failure::Usage, message))
}
