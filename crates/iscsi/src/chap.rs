//! CHAP, both roles (RFC 7143 12.1.3 and 9.2.1, RFC 1994).
//!
//! ```text
//! initiator                               target
//! CHAP_A=8,6,5,7                  ->
//!                                 <-      CHAP_A=8 CHAP_I=.. CHAP_C=..          its challenge
//! CHAP_N=.. CHAP_R=..             ->                                            proof of the initiator
//!   [CHAP_I=.. CHAP_C=..]         ->                                            when it wants proof of the target
//!                                 <-      [CHAP_N=.. CHAP_R=..]
//! ```
//!
//! A response is the digest of identifier, secret and challenge. What this module keeps true:
//!
//! - secrets never print, are at least 96 bits, and responses are compared in constant time;
//! - a challenge that comes back as the other direction's is refused, and so is a response that we
//!   would have given ourselves: one secret must not serve both directions;
//! - the caller makes the challenges: this module has no source of randomness. They must never
//!   repeat.

use std::fmt;

use md5::Md5;
use sha1::Sha1;
use sha2::Sha256;
use sha3::Sha3_256;
use subtle::ConstantTimeEq;

use crate::limits::{
    CHAP_BINARY_BYTES_MAX, CHAP_CHALLENGE_BYTES, CHAP_SECRET_BYTES_MAX, CHAP_SECRET_BYTES_MIN,
    NEGOTIATION_LIST_ITEMS_MAX,
};
use crate::text::{Keys, hexadecimal, parse_binary, parse_number};

/// Digest of a CHAP exchange, by its IANA number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Algorithm {
    /// RFC 1994; every initiator must offer it.
    Md5 = 5,
    /// SHA-1.
    Sha1 = 6,
    /// SHA-256.
    Sha256 = 7,
    /// SHA3-256.
    Sha3_256 = 8,
}

impl Algorithm {
    /// All of them, in the order in which an initiator offers them. SHA-256 is last: Linux tgt and
    /// its relatives take 7 for SHA-1, as in an old draft, and would choose it before MD5.
    pub const ALL: [Self; 4] = [Self::Sha3_256, Self::Sha1, Self::Md5, Self::Sha256];

    fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| *algorithm as u64 == number)
    }

    /// The digest of identifier, secret and challenge (RFC 1994 4.1).
    fn respond(self, identifier: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        match self {
            Self::Md5 => digest::<Md5>(identifier, secret, challenge),
            Self::Sha1 => digest::<Sha1>(identifier, secret, challenge),
            Self::Sha256 => digest::<Sha256>(identifier, secret, challenge),
            Self::Sha3_256 => digest::<Sha3_256>(identifier, secret, challenge),
        }
    }
}

fn digest<D: md5::Digest>(identifier: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
    let digest = D::new().chain_update([identifier]).chain_update(&secret.0).chain_update(challenge);
    digest.finalize().to_vec()
}

/// A CHAP secret. It does not print itself.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret of 12 to 256 bytes.
    ///
    /// # Errors
    /// `SecretLength` outside of that: shorter ones fall to a dictionary (RFC 7143 9.2.1).
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, ChapError> {
        let bytes = bytes.into();
        if !(CHAP_SECRET_BYTES_MIN..=CHAP_SECRET_BYTES_MAX).contains(&bytes.len()) {
            return Err(ChapError::SecretLength { length: bytes.len() });
        }
        Ok(Self(bytes))
    }

    fn is_equal(&self, other: &Self) -> bool {
        bool::from(self.0.as_slice().ct_eq(other.0.as_slice()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A name and its secret.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// CHAP_N.
    pub name: String,
    /// The secret that proves it.
    pub secret: Secret,
}

/// A challenge and its identifier, made by the caller from good randomness for one connection only.
#[derive(Clone, Copy, Debug)]
pub struct Challenge {
    /// CHAP_I.
    pub identifier: u8,
    /// CHAP_C.
    pub bytes: [u8; CHAP_CHALLENGE_BYTES],
}

/// Why authentication ended. A target answers 0201h (authentication failure), an initiator closes the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChapError {
    /// A secret of a length that is not allowed.
    #[error("a CHAP secret has {length} bytes: use {CHAP_SECRET_BYTES_MIN} to {CHAP_SECRET_BYTES_MAX} random ones")]
    SecretLength {
        /// Its length.
        length: usize,
    },
    /// A key is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A key's value does not decode.
    #[error("the value of {0} is not valid")]
    BadValue(&'static str),
    /// No common algorithm.
    #[error("no CHAP algorithm of the peer is known here")]
    NoAlgorithm,
    /// Wrong name or wrong response; the peer does not learn which.
    #[error("the CHAP name or secret is wrong")]
    Refused,
    /// A reflected challenge, or one secret in both directions (RFC 7143 9.2.1).
    #[error("the peer answered with our own challenge or secret: give each direction its own secret")]
    Reflected,
    /// The initiator wants proof of a target that has no secret for it.
    #[error("the initiator asks this target to authenticate itself, and it has no credentials for that")]
    NoOwnCredentials,
    /// Keys out of turn.
    #[error("a CHAP key came out of turn")]
    OutOfTurn,
}

fn required<'a>(keys: &'a Keys, name: &'static str) -> Result<&'a str, ChapError> {
    keys.get(name).ok_or(ChapError::Missing(name))
}

fn binary(keys: &Keys, name: &'static str) -> Result<Vec<u8>, ChapError> {
    parse_binary(required(keys, name)?, CHAP_BINARY_BYTES_MAX).ok_or(ChapError::BadValue(name))
}

fn identifier(keys: &Keys) -> Result<u8, ChapError> {
    let number = parse_number(required(keys, "CHAP_I")?).ok_or(ChapError::BadValue("CHAP_I"))?;
    u8::try_from(number).map_err(|_| ChapError::BadValue("CHAP_I"))
}

/// Checks the peer's CHAP_N and CHAP_R against the response that `peer` requires for `challenge`;
/// `own` are our own credentials towards the peer.
fn verify(
    keys: &Keys,
    algorithm: Algorithm,
    challenge: &Challenge,
    peer: &Credentials,
    own: Option<&Credentials>,
) -> Result<(), ChapError> {
    let response = binary(keys, "CHAP_R")?;
    let expected = algorithm.respond(challenge.identifier, &peer.secret, &challenge.bytes);
    let is_response_right = response.as_slice().ct_eq(expected.as_slice());
    let is_name_right = required(keys, "CHAP_N")?.as_bytes().ct_eq(peer.name.as_bytes());
    let would_be_ours = own.is_some_and(|own| {
        let ours = algorithm.respond(challenge.identifier, &own.secret, &challenge.bytes);
        bool::from(response.as_slice().ct_eq(ours.as_slice()))
    });
    if would_be_ours {
        return Err(ChapError::Reflected);
    }
    if bool::from(is_response_right & is_name_right) { Ok(()) } else { Err(ChapError::Refused) }
}

/// The state of an exchange, for either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Offered,
    Challenged(Algorithm),
    /// The initiator waits for the target's proof.
    Responded(Algorithm),
    Done,
}

/// An initiator's side.
#[derive(Clone, Debug)]
pub struct ChapInitiator {
    own: Credentials,
    /// The credentials that the target must prove, and our challenge for them.
    mutual: Option<(Credentials, Challenge)>,
    state: State,
}

impl ChapInitiator {
    /// Proves `own`, and with `mutual` asks the target for proof as well.
    pub fn new(own: Credentials, mutual: Option<(Credentials, Challenge)>) -> Self {
        Self { own, mutual, state: State::Start }
    }

    /// The algorithms we offer: the first keys of the exchange.
    pub fn offer(&mut self) -> Keys {
        self.state = State::Offered;
        let numbers = Algorithm::ALL.map(|algorithm| (algorithm as u8).to_string());
        [("CHAP_A", numbers.join(","))].into_iter().collect()
    }

    /// Handles the target's next keys. Returns ours; none when the exchange is over.
    ///
    /// # Errors
    /// The connection must then be closed.
    pub fn handle(&mut self, keys: &Keys) -> Result<Keys, ChapError> {
        match self.state {
            State::Offered => self.handle_challenge(keys),
            State::Responded(algorithm) => self.handle_response(algorithm, keys),
            State::Start | State::Challenged(_) | State::Done => Err(ChapError::OutOfTurn),
        }
    }

    /// Whether all required proofs were given.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether our own proof is given.
    pub fn has_responded(&self) -> bool {
        matches!(self.state, State::Responded(_) | State::Done)
    }

    fn handle_challenge(&mut self, keys: &Keys) -> Result<Keys, ChapError> {
        let number = parse_number(required(keys, "CHAP_A")?).ok_or(ChapError::BadValue("CHAP_A"))?;
        let algorithm = Algorithm::from_number(number).ok_or(ChapError::NoAlgorithm)?;
        let challenge = binary(keys, "CHAP_C")?;
        let response = algorithm.respond(identifier(keys)?, &self.own.secret, &challenge);
        let mut answer: Keys =
            [("CHAP_N", self.own.name.clone()), ("CHAP_R", hexadecimal(&response))].into_iter().collect();
        self.state = State::Done;
        if let Some((peer, own_challenge)) = &self.mutual {
            if challenge == own_challenge.bytes || peer.secret.is_equal(&self.own.secret) {
                return Err(ChapError::Reflected);
            }
            answer.push("CHAP_I", own_challenge.identifier.to_string());
            answer.push("CHAP_C", hexadecimal(&own_challenge.bytes));
            self.state = State::Responded(algorithm);
        }
        Ok(answer)
    }

    fn handle_response(&mut self, algorithm: Algorithm, keys: &Keys) -> Result<Keys, ChapError> {
        let (peer, challenge) = self.mutual.as_ref().ok_or(ChapError::OutOfTurn)?;
        verify(keys, algorithm, challenge, peer, Some(&self.own))?;
        self.state = State::Done;
        Ok(Keys::new())
    }
}

/// A target's side.
#[derive(Clone, Debug)]
pub struct ChapTarget {
    /// The accounts, of which the initiator must prove one.
    accounts: Vec<Credentials>,
    /// Our credentials, for an initiator that asks for them.
    own: Option<Credentials>,
    challenge: Challenge,
    state: State,
    account: Option<usize>,
}

impl ChapTarget {
    /// Accepts any of `accounts`, and proves `own` to an initiator that asks for that.
    pub fn new(accounts: Vec<Credentials>, own: Option<Credentials>, challenge: Challenge) -> Self {
        Self { accounts, own, challenge, state: State::Start, account: None }
    }

    /// Handles the initiator's next keys. Returns ours.
    ///
    /// # Errors
    /// The login must then be refused with 0201h.
    pub fn handle(&mut self, keys: &Keys) -> Result<Keys, ChapError> {
        match self.state {
            State::Start => self.handle_offer(keys),
            State::Challenged(algorithm) => self.handle_response(algorithm, keys),
            State::Offered | State::Responded(_) | State::Done => Err(ChapError::OutOfTurn),
        }
    }

    /// Whether the initiator has proved its name.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The name the initiator proved.
    pub fn authenticated_name(&self) -> Option<&str> {
        let account = self.accounts.get(self.account?)?;
        self.is_done().then_some(account.name.as_str())
    }

    fn handle_offer(&mut self, keys: &Keys) -> Result<Keys, ChapError> {
        let offered = required(keys, "CHAP_A")?.split(',').take(NEGOTIATION_LIST_ITEMS_MAX);
        let algorithm =
            offered.filter_map(parse_number).find_map(Algorithm::from_number).ok_or(ChapError::NoAlgorithm)?;
        self.state = State::Challenged(algorithm);
        Ok([
            ("CHAP_A", (algorithm as u8).to_string()),
            ("CHAP_I", self.challenge.identifier.to_string()),
            ("CHAP_C", hexadecimal(&self.challenge.bytes)),
        ]
        .into_iter()
        .collect())
    }

    fn handle_response(&mut self, algorithm: Algorithm, keys: &Keys) -> Result<Keys, ChapError> {
        let name = required(keys, "CHAP_N")?;
        // An unknown name is verified like any other, against an account with another name: neither
        // the answer nor the time it takes shows which names exist.
        let known = self.accounts.iter().position(|account| account.name == name);
        let account = known.unwrap_or(0);
        let credentials = self.accounts.get(account).ok_or(ChapError::Refused)?;
        verify(keys, algorithm, &self.challenge, credentials, self.own.as_ref())?;
        let answer = if keys.get("CHAP_C").is_some() { self.prove_ourselves(algorithm, keys)? } else { Keys::new() };
        self.account = Some(known.ok_or(ChapError::Refused)?);
        self.state = State::Done;
        Ok(answer)
    }

    fn prove_ourselves(&self, algorithm: Algorithm, keys: &Keys) -> Result<Keys, ChapError> {
        let challenge = binary(keys, "CHAP_C")?;
        if challenge == self.challenge.bytes {
            return Err(ChapError::Reflected);
        }
        let own = self.own.as_ref().ok_or(ChapError::NoOwnCredentials)?;
        let response = algorithm.respond(identifier(keys)?, &own.secret, &challenge);
        Ok([("CHAP_N", own.name.clone()), ("CHAP_R", hexadecimal(&response))].into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(name: &str, secret: &str) -> Credentials {
        Credentials { name: name.to_owned(), secret: Secret::new(secret).unwrap() }
    }

    fn challenge(fill: u8) -> Challenge {
        Challenge { identifier: fill, bytes: [fill; CHAP_CHALLENGE_BYTES] }
    }

    fn target(own: Option<Credentials>) -> ChapTarget {
        ChapTarget::new(
            vec![credentials("other", "other secret 1"), credentials("alice", "alice's secret")],
            own,
            challenge(7),
        )
    }

    fn exchange(initiator: &mut ChapInitiator, target: &mut ChapTarget) -> Result<(), ChapError> {
        let mut to_target = initiator.offer();
        while !(initiator.is_done() && target.is_done()) {
            let to_initiator = target.handle(&to_target)?;
            to_target = if initiator.is_done() { Keys::new() } else { initiator.handle(&to_initiator)? };
        }
        Ok(())
    }

    #[test]
    fn one_way() {
        let mut initiator = ChapInitiator::new(credentials("alice", "alice's secret"), None);
        let mut target = target(None);
        assert_eq!(target.authenticated_name(), None);
        exchange(&mut initiator, &mut target).unwrap();
        assert_eq!(target.authenticated_name(), Some("alice"));
    }

    #[test]
    fn both_ways() {
        let own = credentials("target", "target's secret");
        let mutual = Some((own.clone(), challenge(9)));
        let mut initiator = ChapInitiator::new(credentials("alice", "alice's secret"), mutual);
        exchange(&mut initiator, &mut target(Some(own))).unwrap();
        assert!(initiator.is_done());
    }

    #[test]
    fn wrong_names_and_secrets_are_refused_alike() {
        for wrong in [
            credentials("alice", "another secret"),
            credentials("mallory", "alice's secret"),
            credentials("other", "alice's secret"),
        ] {
            let mut initiator = ChapInitiator::new(wrong, None);
            let mut target = target(None);
            assert_eq!(exchange(&mut initiator, &mut target), Err(ChapError::Refused));
            assert!(!target.is_done());
        }
    }

    /// Whatever else is wrong with a response, an unknown name changes neither the answer nor the
    /// computation.
    #[test]
    fn an_unknown_name_is_treated_like_a_known_one() {
        let answer = |name: &str, response: Option<&str>| {
            let mut target = target(None);
            target.handle(&[("CHAP_A", "7,5")].into_iter().collect()).unwrap();
            let mut keys: Keys = [("CHAP_N", name)].into_iter().collect();
            response.into_iter().for_each(|response| keys.push("CHAP_R", response));
            target.handle(&keys).unwrap_err()
        };
        for response in [None, Some("nonsense"), Some("0x00")] {
            assert_eq!(answer("mallory", response), answer("alice", response), "{response:?}");
        }
    }

    #[test]
    fn a_false_target_is_found_out() {
        let mutual = Some((credentials("target", "target's secret"), challenge(9)));
        let mut initiator = ChapInitiator::new(credentials("alice", "alice's secret"), mutual);
        let false_own = Some(credentials("target", "not its secret"));
        assert_eq!(exchange(&mut initiator, &mut target(false_own)), Err(ChapError::Refused));
        assert!(!initiator.is_done());
    }

    #[test]
    fn a_target_without_credentials_says_so() {
        let mutual = Some((credentials("target", "target's secret"), challenge(9)));
        let mut initiator = ChapInitiator::new(credentials("alice", "alice's secret"), mutual);
        assert_eq!(exchange(&mut initiator, &mut target(None)), Err(ChapError::NoOwnCredentials));
    }

    #[test]
    fn reflection_is_refused() {
        // The target's challenge sent back as the initiator's.
        let own = credentials("target", "target's secret");
        let mut target = target(Some(own.clone()));
        let mut initiator = ChapInitiator::new(credentials("alice", "alice's secret"), None);
        let asked = target.handle(&initiator.offer()).unwrap();
        let mut answer = initiator.handle(&asked).unwrap();
        answer.push("CHAP_I", "1");
        answer.push("CHAP_C", asked.get("CHAP_C").unwrap());
        assert_eq!(target.handle(&answer), Err(ChapError::Reflected));
        // Our challenge sent to us by a target.
        let mut initiator = ChapInitiator::new(credentials("alice", "alice's secret"), Some((own, challenge(7))));
        initiator.offer();
        assert_eq!(initiator.handle(&asked), Err(ChapError::Reflected));
        // One secret in both directions.
        let same = Some((credentials("target", "alice's secret"), challenge(9)));
        let mut initiator = ChapInitiator::new(credentials("alice", "alice's secret"), same);
        initiator.offer();
        assert_eq!(initiator.handle(&asked), Err(ChapError::Reflected));
    }

    /// Each digest alone, in both directions, with the identifiers at the ends of their range.
    #[test]
    fn every_digest_proves_both_ends() {
        for algorithm in Algorithm::ALL {
            for identifiers in [(0, 255), (255, 0)] {
                let own = credentials("target", "target's secret");
                let mut target = target(Some(own.clone()));
                target.challenge.identifier = identifiers.0;
                let theirs = Challenge { identifier: identifiers.1, ..challenge(9) };
                let mut initiator = ChapInitiator::new(credentials("alice", "alice's secret"), Some((own, theirs)));
                initiator.offer();
                let offer: Keys = [("CHAP_A", (algorithm as u8).to_string())].into_iter().collect();
                let asked = target.handle(&offer).unwrap();
                let proof = initiator.handle(&asked).unwrap();
                let answer = target.handle(&proof).unwrap();
                assert!(target.is_done() && !initiator.is_done(), "{algorithm:?}");
                initiator.handle(&answer).unwrap();
                assert!(initiator.is_done(), "{algorithm:?}");
            }
        }
    }

    /// RFC 7143 9.2.1: an initiator that opens a second login and lets the target answer its own
    /// challenge gains nothing, with any digest; and a proof made with the target's own secret is
    /// refused.
    #[test]
    fn no_digest_can_be_reflected() {
        for algorithm in Algorithm::ALL {
            let own = credentials("target", "target's secret");
            let offer: Keys = [("CHAP_A", (algorithm as u8).to_string())].into_iter().collect();
            let mut first = target(Some(own.clone()));
            first.handle(&offer).unwrap();
            let forged = algorithm.respond(first.challenge.identifier, &own.secret, &first.challenge.bytes);
            let proof: Keys = [("CHAP_N", "alice".to_owned()), ("CHAP_R", hexadecimal(&forged))].into_iter().collect();
            assert_eq!(first.handle(&proof), Err(ChapError::Reflected), "{algorithm:?}");
            assert!(!first.is_done());
            assert_eq!(first.authenticated_name(), None);
        }
    }

    /// RFC 7143 12.1.3: binary items have at most 1024 bytes; a response has exactly those of its digest.
    #[test]
    fn challenges_and_responses_of_other_lengths() {
        let offer: Keys = [("CHAP_A", "7")].into_iter().collect();
        let answer_to = |length: usize| {
            let mut target = target(Some(credentials("target", "target's secret")));
            target.handle(&offer).unwrap();
            let proof = Algorithm::Sha256.respond(7, &Secret::new("alice's secret").unwrap(), &target.challenge.bytes);
            let keys: Keys = [
                ("CHAP_N", "alice".to_owned()),
                ("CHAP_R", hexadecimal(&proof)),
                ("CHAP_I", "1".to_owned()),
                ("CHAP_C", hexadecimal(&vec![3; length])),
            ]
            .into_iter()
            .collect();
            target.handle(&keys).map(|_| ())
        };
        assert_eq!(answer_to(1), Ok(()));
        assert_eq!(answer_to(CHAP_BINARY_BYTES_MAX), Ok(()));
        assert_eq!(answer_to(CHAP_BINARY_BYTES_MAX + 1), Err(ChapError::BadValue("CHAP_C")));
        assert_eq!(answer_to(0), Err(ChapError::BadValue("CHAP_C")));
        for length in [1, 31, 33, 64] {
            let mut target = target(None);
            target.handle(&offer).unwrap();
            let keys: Keys =
                [("CHAP_N", "alice".to_owned()), ("CHAP_R", hexadecimal(&vec![3; length]))].into_iter().collect();
            assert_eq!(target.handle(&keys), Err(ChapError::Refused), "a response of {length} bytes");
        }
    }

    /// RFC 1994 4.1 with MD5: the digest of 01h, "tomato sausage" and eight bytes.
    #[test]
    fn responses_are_the_digests_of_the_standard() {
        let secret = Secret::new("tomato sausage").unwrap();
        let response = |algorithm: Algorithm| hexadecimal(&algorithm.respond(1, &secret, b"12345678"));
        let plain = b"\x01tomato sausage12345678";
        assert_eq!(response(Algorithm::Md5), hexadecimal(&<Md5 as md5::Digest>::digest(plain)));
        assert_eq!(response(Algorithm::Sha1).len(), 2 + 40);
        assert_eq!(response(Algorithm::Sha256), hexadecimal(&<Sha256 as md5::Digest>::digest(plain)));
        assert_eq!(response(Algorithm::Sha3_256), hexadecimal(&<Sha3_256 as md5::Digest>::digest(plain)));
    }

    #[test]
    fn the_first_known_algorithm_of_the_initiator_is_taken() {
        for (offered, taken) in
            [("5", Some("5")), ("99,6,5", Some("6")), ("7", Some("7")), ("0x8", Some("8")), ("99,x,", None)]
        {
            let keys: Keys = [("CHAP_A", offered)].into_iter().collect();
            let answer = target(None).handle(&keys);
            assert_eq!(answer.as_ref().ok().and_then(|keys| keys.get("CHAP_A")), taken, "{offered}");
        }
    }

    #[test]
    fn values_that_do_not_decode() {
        for (asked, error) in [
            ("CHAP_A=5 CHAP_I=1", ChapError::Missing("CHAP_C")),
            ("CHAP_A=5 CHAP_C=0x01", ChapError::Missing("CHAP_I")),
            ("CHAP_A=5 CHAP_I=256 CHAP_C=0x01", ChapError::BadValue("CHAP_I")),
            ("CHAP_A=5 CHAP_I=1 CHAP_C=01", ChapError::BadValue("CHAP_C")),
            ("CHAP_A=9 CHAP_I=1 CHAP_C=0x01", ChapError::NoAlgorithm),
        ] {
            let keys: Keys = asked.split(' ').filter_map(|pair| pair.split_once('=')).collect();
            let mut initiator = ChapInitiator::new(credentials("alice", "alice's secret"), None);
            assert_eq!(initiator.handle(&keys), Err(ChapError::OutOfTurn));
            initiator.offer();
            assert_eq!(initiator.handle(&keys), Err(error), "{asked}");
        }
    }

    #[test]
    fn secrets_stay_secret_and_are_not_weak() {
        assert!(!format!("{:?}", credentials("alice", "do not print me")).contains("print"));
        assert!(matches!(Secret::new("eleven byte"), Err(ChapError::SecretLength { length: 11 })));
    }
}
