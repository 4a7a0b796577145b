//! Logins: what each of them says, and what ends one.

use super::*;

/// RFC 7143 13.21: SessionType is for leading logins; Linux's target ends one that joins a session
/// and sends it.
#[test]
fn a_login_that_joins_a_session_does_not_say_its_type() {
    for (tsih, session_type) in [(0, Some("Normal")), (9, None)] {
        let mut pair = Pair::new(LoginConfig { tsih, ..config() });
        let (request, data) = pair.login_request();
        assert_eq!(request.tsih, tsih);
        let keys = Keys::parse(&data).unwrap();
        assert_eq!(keys.get("SessionType"), session_type);
        assert_eq!(keys.get("InitiatorName"), Some("iqn.2026-01.io.forebay:us"));
        assert_eq!(keys.get("TargetName"), Some("iqn.2026-01.io.forebay:them"));
    }
}

/// RFC 7143 6.3: security first, then operational, each ended by both.
#[test]
fn a_login_without_credentials() {
    let mut pair = Pair::new(config());
    let (first, data) = pair.login_request();
    assert_eq!(first.current_stage, LoginStage::SecurityNegotiation);
    assert_eq!(first.transit_to, Some(LoginStage::OperationalNegotiation));
    assert_eq!((first.tsih, first.cid, first.cmd_sn), (0, 3, Serial32(u32::MAX)));
    let keys = Keys::parse(&data).unwrap();
    assert_eq!(keys.get("AuthMethod"), Some("None"));
    assert_eq!(keys.get("TargetName"), Some("iqn.2026-01.io.forebay:them"));
    // The target sends two pieces of text, and does not go on at once.
    let mut response = pair.login_response(&first, LoginStatus::SUCCESS);
    (response.is_continued, response.transit_to) = (true, None);
    pair.send(&response, b"TargetPortalGroupTag=1\0AuthMet".to_vec()).unwrap();
    let (empty, data) = pair.login_request();
    assert!(data.is_empty());
    assert_eq!(empty.exp_stat_sn, Serial32(501));
    let mut response = pair.login_response(&empty, LoginStatus::SUCCESS);
    response.transit_to = None;
    pair.send(&response, b"hod=None\0".to_vec()).unwrap();
    let (again, data) = pair.login_request();
    assert!(data.is_empty());
    assert_eq!(again.transit_to, Some(LoginStage::OperationalNegotiation), "it keeps asking to go on");
    let response = pair.login_response(&again, LoginStatus::SUCCESS);
    pair.send(&response, Vec::new()).unwrap();
    let (operational, data) = pair.login_request();
    assert_eq!(operational.current_stage, LoginStage::OperationalNegotiation);
    assert_eq!(Keys::parse(&data).unwrap().get("MaxBurstLength"), Some("1048576"));
}

#[test]
fn logins_that_come_to_nothing() {
    let answer = |status: LoginStatus, text: &[u8], change: fn(&mut LoginResponse)| {
        let mut pair = Pair::new(config());
        let (request, _) = pair.login_request();
        let mut response = pair.login_response(&request, status);
        change(&mut response);
        pair.send(&response, text.to_vec()).unwrap_err()
    };
    let plain = |_: &mut LoginResponse| {};
    assert_eq!(
        answer(LoginStatus::NOT_FOUND, b"", plain),
        ConnectionError::Login(LoginError::Refused(LoginStatus::NOT_FOUND))
    );
    assert_eq!(
        answer(LoginStatus::TARGET_MOVED_PERMANENTLY, b"TargetAddress=10.0.0.9:3261,1\0", plain),
        ConnectionError::Login(LoginError::Moved { is_permanent: true, addresses: vec!["10.0.0.9:3261".to_owned()] })
    );
    assert_eq!(
        answer(LoginStatus::SUCCESS, b"AuthMethod=KRB5\0", plain),
        ConnectionError::Login(LoginError::Method("KRB5".to_owned()))
    );
    let skip = |response: &mut LoginResponse| response.current_stage = LoginStage::OperationalNegotiation;
    assert!(matches!(answer(LoginStatus::SUCCESS, b"", skip), ConnectionError::Login(LoginError::Protocol(_))));
    let mut pair = Pair::new(config());
    pair.sent();
    assert_eq!(pair.connection.poll_timeout(&pair.session), Some(pair.now + Duration::from_secs(10)));
    assert_eq!(pair.pass(Duration::from_secs(10)), Err(ConnectionError::LoginTimedOut));
}

/// A text that goes on is asked for again and again; the login as a whole has its time besides.
#[test]
fn a_login_has_so_many_exchanges_and_no_more() {
    let mut pair = Pair::new(config());
    for exchange in 1.. {
        let (request, _) = pair.login_request();
        let mut response = pair.login_response(&request, LoginStatus::SUCCESS);
        (response.is_continued, response.transit_to) = (true, None);
        match pair.send(&response, Vec::new()) {
            Ok(()) => assert!(exchange <= 32, "exchange {exchange}"),
            Err(error) => {
                assert!(matches!(error, ConnectionError::Login(LoginError::Protocol(_))), "{error}");
                assert_eq!(exchange, 33);
                break;
            }
        }
    }
}
