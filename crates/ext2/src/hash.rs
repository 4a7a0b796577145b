//! Hashes of names, by which the index of a directory is sorted.
//!
//! There are three, each over signed or unsigned characters, because the first systems disagreed on
//! that. The lowest bit of a hash is always zero: an index uses it to mark that names of one hash
//! are in two blocks.

/// The hash function of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashVersion {
    /// The first one; it has no seed.
    Legacy,
    /// MD4 with half of its rounds.
    HalfMd4,
    /// The Tiny Encryption Algorithm.
    Tea,
}

impl HashVersion {
    /// The function with this number in an index.
    pub fn of(byte: u8) -> Option<Self> {
        [Self::Legacy, Self::HalfMd4, Self::Tea].get(usize::from(byte)).copied()
    }
}

/// Parameters of a hash, besides the name.
#[derive(Clone, Copy, Debug)]
pub struct Hasher {
    pub version: HashVersion,
    pub is_unsigned: bool,
    /// All zero: a fixed, public seed.
    pub seed: [u32; 4],
}

/// The largest hash, which means the end of a directory.
const END: u32 = 0xffff_fffe;
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

impl Hasher {
    /// The hash of a name.
    pub fn hash(&self, name: &[u8]) -> u32 {
        let seed = if self.seed == [0; 4] { DEFAULT_SEED } else { self.seed };
        let hash = match self.version {
            HashVersion::Legacy => self.legacy(name),
            HashVersion::HalfMd4 => name.chunks(32).fold(seed, |state, part| half_md4(state, &self.words(part)))[1],
            HashVersion::Tea => name.chunks(16).fold(seed, |state, part| tea(state, &self.words(part)))[0],
        };
        let hash = hash & !1;
        if hash == END { END - 2 } else { hash }
    }

    fn character(&self, byte: u8) -> u32 {
        if self.is_unsigned { u32::from(byte) } else { byte as i8 as u32 }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
        for &byte in name {
            let mut next = before.wrapping_add(last ^ self.character(byte).wrapping_mul(7_152_373));
            if next & 0x8000_0000 != 0 {
                next = next.wrapping_sub(0x7fff_ffff);
            }
            (before, last) = (last, next);
        }
        last << 1
    }

    /// Characters as words, most significant first; the rest is filled with the length.
    fn words<const N: usize>(&self, part: &[u8]) -> [u32; N] {
        let length = part.len() as u32;
        let filling = length | length << 8 | length << 16 | length << 24;
        let mut words = [filling; N];
        for (word, characters) in words.iter_mut().zip(part.chunks(4)) {
            *word = characters.iter().fold(filling, |word, byte| self.character(*byte).wrapping_add(word << 8));
        }
        words
    }
}

fn tea(state: [u32; 4], words: &[u32; 4]) -> [u32; 4] {
    let [a, b, c, d] = *words;
    let (mut first, mut second, mut sum) = (state[0], state[1], 0_u32);
    let mix = |half: u32, sum: u32, left: u32, right: u32| {
        (half << 4).wrapping_add(left) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(right)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        first = first.wrapping_add(mix(second, sum, a, b));
        second = second.wrapping_add(mix(first, sum, c, d));
    }
    [state[0].wrapping_add(first), state[1].wrapping_add(second), state[2], state[3]]
}

/// One round of MD4: its function, its constant, the words that it uses, and its rotations.
struct Round {
    function: fn(u32, u32, u32) -> u32,
    constant: u32,
    words: [usize; 8],
    turns: [u32; 4],
}

const ROUNDS: [Round; 3] = [
    Round {
        function: |x, y, z| z ^ (x & (y ^ z)),
        constant: 0,
        words: [0, 1, 2, 3, 4, 5, 6, 7],
        turns: [3, 7, 11, 19],
    },
    Round {
        function: |x, y, z| (x & y).wrapping_add((x ^ y) & z),
        constant: 0x5a82_7999,
        words: [1, 3, 5, 7, 0, 2, 4, 6],
        turns: [3, 5, 9, 13],
    },
    Round {
        function: |x, y, z| x ^ y ^ z,
        constant: 0x6ed9_eba1,
        words: [3, 7, 2, 6, 1, 5, 0, 4],
        turns: [3, 9, 11, 15],
    },
];

fn half_md4(state: [u32; 4], words: &[u32; 8]) -> [u32; 4] {
    let mut now = state;
    for round in &ROUNDS {
        for (step, word) in round.words.into_iter().enumerate() {
            // a, d, c, b are computed one after the other.
            let at = |offset: usize| (4 - step % 4 + offset) % 4;
            let mixed = (round.function)(now[at(1)], now[at(2)], now[at(3)]);
            let sum = now[at(0)].wrapping_add(mixed).wrapping_add(words[word]).wrapping_add(round.constant);
            now[at(0)] = sum.rotate_left(round.turns[step % 4]);
        }
    }
    std::array::from_fn(|index| state[index].wrapping_add(now[index]))
}
