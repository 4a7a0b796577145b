//! The stages in which keys are sent: those of the login, or after it.

use crate::pdu::LoginStage;

/// A login stage, or the full feature phase; the value is the CSG and NSG code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// SecurityNegotiation.
    Security = 0,
    /// LoginOperationalNegotiation.
    Operational = 1,
    /// FullFeaturePhase.
    FullFeature = 3,
}

impl From<LoginStage> for Stage {
    fn from(stage: LoginStage) -> Self {
        match stage {
            LoginStage::SecurityNegotiation => Self::Security,
            LoginStage::OperationalNegotiation => Self::Operational,
            LoginStage::FullFeaturePhase => Self::FullFeature,
        }
    }
}
