//! iSCSI URLs as libiscsi writes them.
