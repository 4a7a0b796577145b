//! The proof that a life of a client before a start of the target was its own.
//!
//! A client that claims what a life held gets it, and ids of lives are no secret: a report lists
//! them. So each client is given the authentication code of its id under a secret of the unit, and
//! shows that code. The unit keeps the secret and no data of any client. The code is HMAC-SHA-256
//! (RFC 2104), of `ring`, which also compares in constant time.

use std::fmt;

use locks::identity::ClientId;
use ring::hmac;
use scsi::sharing::{NO_PROOF, Proof};

/// Bytes of the secret: as many as HMAC-SHA-256 can use.
pub const SECRET_BYTES: usize = 32;

/// The secret of a unit, drawn at random once. It outlives starts of the target, and never leaves it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LifeSecret([u8; SECRET_BYTES]);

impl LifeSecret {
    /// A secret from the random bytes that were drawn.
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes for the store.
    pub fn bytes(&self) -> [u8; SECRET_BYTES] {
        self.0
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    /// The code that a client is given.
    pub(super) fn proof_of(&self, client: ClientId) -> Proof {
        let code = hmac::sign(&self.key(), &client.bits().to_be_bytes());
        // The code has this length.
        code.as_ref().try_into().unwrap_or(NO_PROOF)
    }

    /// Whether this is the code that the client was given.
    pub(super) fn proves(&self, client: ClientId, proof: &Proof) -> bool {
        hmac::verify(&self.key(), &client.bits().to_be_bytes(), proof).is_ok()
    }
}

/// Keeps the secret out of logs.
impl fmt::Debug for LifeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LifeSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 1 has a key of 20 bytes; `ring` pads it with zeroes, as the secret here has them.
    #[test]
    fn the_code_is_that_of_rfc_2104_and_shows_one_life_of_one_unit() {
        let mut secret = [0; SECRET_BYTES];
        secret[..20].fill(0x0b);
        let secret = LifeSecret::from_bytes(secret);
        let client = ClientId::from_bits(u64::from_be_bytes(*b"Hi There"));
        let code = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        let proof = secret.proof_of(client);
        assert_eq!(proof.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), code);
        assert!(secret.proves(client, &proof));
        assert!(!secret.proves(ClientId::from_bits(client.bits() + 1), &proof), "another life");
        assert!(!LifeSecret::from_bytes([1; SECRET_BYTES]).proves(client, &proof), "another unit");
        assert!(!secret.proves(client, &NO_PROOF));
        assert_eq!(format!("{secret:?}"), "LifeSecret(..)");
    }
}
