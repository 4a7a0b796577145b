//! What a log was opened with and level 2's present options, as its parts ask for them.

use std::sync::{Mutex, PoisonError};

use crate::options::{DestageOrder, Durability, Level1, Level2, OpenOptions};

/// Durability, destage order, and the options of both levels.
pub(crate) struct Settings {
    pub(crate) durability: Durability,
    pub(crate) order: DestageOrder,
    pub(crate) level1: Level1,
    /// May change while the log is open.
    level2: Mutex<Level2>,
}

impl Settings {
    pub(crate) fn new(options: &OpenOptions) -> Self {
        Self {
            durability: options.durability,
            order: options.order,
            level1: options.level1,
            level2: Mutex::new(options.level2),
        }
    }

    /// Whether writes are acknowledged from slots.
    pub(crate) fn is_staged(&self) -> bool {
        self.durability != Durability::Log
    }

    /// Whether the origin is kept a prefix of epochs.
    pub(crate) fn keeps_order(&self) -> bool {
        self.order == DestageOrder::Log
    }

    /// The present options of level 2.
    pub(crate) fn level2(&self) -> Level2 {
        *self.level2.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_level2(&self, level2: Level2) {
        *self.level2.lock().unwrap_or_else(PoisonError::into_inner) = level2;
    }
}
