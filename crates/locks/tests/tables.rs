//! The tables are the paper's, and the functions derived from them agree with them.

use locks::mode::{DATA_CONFLICTS, METADATA_CONFLICTS, Mode};

/// As printed: '+' indicates incompatibility.
const TABLE_1: &str = "
        M_S M_X
    M_S  .   +
    M_X  +   +";

/// As printed: '+' means conflict.
const TABLE_2: &str = "
         D_S D_X D_IS D_IX
    D_S   .   +   .    +
    D_X   +   +   +    +
    D_IS  .   +   .    .
    D_IX  +   +   .    .";

const DATA: [Mode; 4] = [Mode::D_S, Mode::D_X, Mode::D_IS, Mode::D_IX];
const METADATA: [Mode; 2] = [Mode::M_S, Mode::M_X];

fn check_against(table: &str, modes: &[Mode], conflicts: impl Fn(usize, usize) -> bool) {
    let mut lines = table.lines().filter(|line| !line.trim().is_empty());
    let columns: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(columns.len(), modes.len());
    for (row, line) in lines.enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[0], modes[row].to_string());
        for (column, word) in words[1..].iter().enumerate() {
            assert_eq!(columns[column], modes[column].to_string());
            assert_eq!(conflicts(row, column), *word == "+", "{} and {}", words[0], columns[column]);
            assert_eq!(modes[row].conflicts(modes[column]), *word == "+");
        }
    }
}

#[test]
fn the_tables_are_those_of_the_paper() {
    check_against(TABLE_1, &METADATA, |row, column| METADATA_CONFLICTS[row][column]);
    check_against(TABLE_2, &DATA, |row, column| DATA_CONFLICTS[row][column]);
}

#[test]
fn a_mode_that_covers_another_conflicts_with_all_that_the_other_does() {
    for modes in [&DATA[..], &METADATA[..]] {
        for (a, b) in modes.iter().flat_map(|a| modes.iter().map(move |b| (*a, *b))) {
            let joined = a.join(b);
            assert!(joined.covers(a) && joined.covers(b), "{a} joined with {b} is {joined}");
            assert_eq!(joined, b.join(a));
            assert!(modes.iter().filter(|c| c.covers(a) && c.covers(b)).all(|c| c.covers(joined)), "the weakest");
            assert!(modes.iter().all(|c| !a.conflicts(*c) || joined.conflicts(*c)));
        }
    }
    assert_eq!(
        Mode::D_S.join(Mode::D_IX),
        Mode::D_X,
        "the paper has no mode that is shared and intends exclusive access"
    );
    assert!(!Mode::D_X.covers(Mode::M_S) && !Mode::M_S.covers(Mode::D_S));
}

#[test]
fn whoever_is_called_down_keeps_as_much_as_fits_beside_the_other() {
    let cases = [
        (Mode::M_X, Mode::M_S, Some(Mode::M_S)),
        (Mode::M_X, Mode::M_X, None),
        (Mode::M_S, Mode::M_X, None),
        (Mode::D_X, Mode::D_S, Some(Mode::D_S)),
        (Mode::D_X, Mode::D_IS, Some(Mode::D_S)),
        (Mode::D_X, Mode::D_IX, Some(Mode::D_IX)),
        (Mode::D_S, Mode::D_IX, Some(Mode::D_IS)),
        (Mode::D_IX, Mode::D_S, Some(Mode::D_IS)),
        (Mode::D_IS, Mode::D_X, None),
    ];
    for (held, requested, kept) in cases {
        assert_eq!(held.strongest_beside(requested), kept, "{held} beside {requested}");
    }
    assert_eq!(Mode::D_IX.meet(Mode::D_S), Mode::D_IS);
}
