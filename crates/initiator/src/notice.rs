//! What the driver says in the log about a LUN and its sessions.

use block::Geometry;

/// A kind of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    SessionLost,
    SessionBack,
    NoSession,
    /// Others changed the LUN.
    Changed,
    /// Perhaps they did.
    PerhapsChanged,
    /// The target does not say whether they did.
    Untold,
    /// The LUN has other properties.
    OtherProperties,
}

/// What has changed about a unit, in words for the log.
pub(crate) fn words_of_changes(before: &Geometry, now: &Geometry) -> String {
    let mut words = Vec::new();
    if before.size_bytes != now.size_bytes {
        words.push(format!("its size was {} bytes and is {}", before.size_bytes, now.size_bytes));
    }
    if before.is_write_cache_volatile != now.is_write_cache_volatile {
        words.push(format!("its write cache is {}", if now.is_write_cache_volatile { "on" } else { "off" }));
    }
    if before.is_read_only != now.is_read_only {
        words.push(format!("it may {} be written to", if now.is_read_only { "no longer" } else { "again" }));
    }
    if words.is_empty() {
        words.push("its blocks or limits".to_owned());
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_what_changed_and_nothing_else() {
        let before = Geometry::plain(4096);
        let switched = Geometry { is_write_cache_volatile: !before.is_write_cache_volatile, ..before };
        assert!(!words_of_changes(&before, &switched).contains("size"), "{}", words_of_changes(&before, &switched));
        assert!(words_of_changes(&before, &switched).contains("write cache"));
        let grown = Geometry { size_bytes: 8192, ..before };
        assert_eq!(words_of_changes(&before, &grown), "its size was 4096 bytes and is 8192");
        let shut = Geometry { is_read_only: true, ..before };
        assert_eq!(words_of_changes(&before, &shut), "it may no longer be written to");
        assert_eq!(
            words_of_changes(&before, &Geometry { physical_block_bytes: 8192, ..before }),
            "its blocks or limits"
        );
    }
}
