//! What a stack is made of.

use crate::cache_place::CacheConfig;
use crate::difference_place::DifferenceConfig;
use crate::log_place::LogConfig;
use crate::remotes::RemotesConfig;
use crate::settings::Settings;

/// What a stack is made of.
pub struct StackConfig {
    /// The LUN or LUNs, and how to log in.
    pub remotes: RemotesConfig,
    /// The name of the attachment.
    pub name: String,
    /// The cache, if there is to be one.
    pub cache: Option<CacheConfig>,
    /// The write log, if there is to be one: over the cache, if there is one, too.
    pub log: Option<LogConfig>,
    /// Where what is written goes, if the LUN is to stay as it is; not beside a log.
    pub difference: Option<DifferenceConfig>,
    /// Whether dirty data may replace what others have written there since.
    pub overwrites_changes: bool,
    /// The settings that all this was made from.
    pub settings: Settings,
}
