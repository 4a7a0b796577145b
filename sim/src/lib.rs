//! Several parts of forebay under one virtual clock and one seed.
