//! The settings of a cache, at the start and while it runs.

use cache::{Associativity, Cache, CleaningRate, DirtyLimits, LineSize, Tuning};

use crate::error::Result;
use crate::settings::Settings;

/// Applies settings to a running cache that need neither waiting nor the registry.
///
/// # Errors
/// As [`Settings::chosen`].
pub(crate) fn apply(cache: &Cache, settings: &Settings) -> Result<()> {
    let replacement = settings.chosen("cache.replacement")?;
    if cache.status().replacement != replacement {
        cache.set_replacement(replacement);
    }
    cache.set_tuning(tuning(settings)?);
    cache.set_dirty_limits(dirty_limits(settings));
    cache.set_cleaning_rate(cleaning_rate(settings));
    cache.set_deferred_max(deferred_max(settings));
    Ok(())
}

/// Which data gets a frame.
///
/// # Errors
/// As [`Settings::chosen`].
pub(crate) fn tuning(settings: &Settings) -> Result<Tuning> {
    Ok(Tuning {
        admission: settings.chosen("cache.admission")?,
        cutoff_bytes: settings.number("cache.cutoff"),
        prefetch_bytes: settings.number("cache.prefetch").unwrap_or(0),
        prefetches_lines: settings.is_on("cache.prefetch-lines"),
    })
}

/// How many lines may be dirty.
pub(crate) fn dirty_limits(settings: &Settings) -> DirtyLimits {
    let usual = DirtyLimits::default();
    DirtyLimits {
        clean_above: settings.share("cache.clean-above").unwrap_or(usual.clean_above),
        max: settings.share("cache.dirty-max").unwrap_or(usual.max),
    }
}

/// How fast lines are cleaned.
pub(crate) fn cleaning_rate(settings: &Settings) -> CleaningRate {
    let usual = CleaningRate::default();
    CleaningRate {
        min_bytes: settings.number("cache.clean-min").unwrap_or(usual.min_bytes),
        max_bytes: settings.number("cache.clean-max"),
    }
}

/// Bytes of the largest write that is deferred.
pub(crate) fn deferred_max(settings: &Settings) -> u64 {
    settings.number("cache.deferred").unwrap_or(0)
}

/// Line size of a new cache.
pub(crate) fn line_size(settings: &Settings) -> LineSize {
    settings.number("cache.block-size").and_then(LineSize::new).unwrap_or_default()
}

/// Associativity of a new cache.
pub(crate) fn associativity(settings: &Settings) -> Associativity {
    let ways = settings.number("cache.associativity").and_then(|ways| u32::try_from(ways).ok());
    ways.map_or(Associativity::Full, Associativity::Ways)
}
