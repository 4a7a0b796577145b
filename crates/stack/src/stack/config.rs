//! The configuration of a stack.

use iscsi::url::Url;

use crate::cache_place::CacheConfig;
use crate::difference_place::DifferenceConfig;
use crate::log_place::LogConfig;
use crate::remotes::RemotesConfig;
use crate::rooted_setting::rooted;
use crate::settings::Settings;
use crate::status::start::StartStatus;

/// The configuration of a stack.
#[derive(Clone)]
pub struct StackConfig {
    /// The LUN or LUNs, with their logins.
    pub remotes: RemotesConfig,
    /// The name of the attachment.
    pub name: String,
    /// The cache, if any.
    pub cache: Option<CacheConfig>,
    /// The write log, if any; it lies over the cache.
    pub log: Option<LogConfig>,
    /// The difference for all writes, if the LUN must not change; not together with a log.
    pub difference: Option<DifferenceConfig>,
    /// Whether dirty data may overwrite later changes by others.
    pub overwrites_changes: bool,
    /// The settings from which this was made.
    pub settings: Settings,
}

impl StackConfig {
    /// What counts until the next start, for who asks whether another one is the same.
    pub fn start_status(&self) -> StartStatus {
        let urls = self.remotes.remotes.iter().map(|remote| Url { user: None, ..remote.url.clone() }.to_string());
        StartStatus { urls: urls.collect(), settings: self.settings.at_start(rooted) }
    }
}
