//! Signing in, and what does not sign anybody in.

use ether_types::{ManualClock, Timestamp};

use super::*;
use crate::testing::MemoryTokens;

fn auth() -> (Auth, ManualClock, Arc<MemoryTokens>) {
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let tokens = Arc::new(MemoryTokens::default());
    (
        Auth::new("owner-secret", tokens.clone(), Arc::new(clock.clone())),
        clock,
        tokens,
    )
}

fn with(value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, value.parse().unwrap());
    headers
}

#[tokio::test]
async fn only_the_whole_owner_token_in_the_right_scheme_is_the_owner() {
    let (auth, ..) = auth();
    assert_eq!(
        auth.principal(&with("Bearer owner-secret")).await,
        Ok(Principal::Owner)
    );
    assert_eq!(
        auth.principal(&with("bearer  owner-secret")).await,
        Ok(Principal::Owner)
    );
    for wrong in [
        "Bearer owner-secre",
        "Bearer owner-secret2",
        "Basic owner-secret",
        "Bearer",
        "Bearer ",
        "owner-secret",
    ] {
        let refused = auth.principal(&with(wrong)).await.unwrap_err();
        let another = wrong
            .strip_prefix("Bearer ")
            .is_some_and(|token| !token.is_empty());
        let expected = if another {
            Unauthorized::UnknownToken
        } else {
            Unauthorized::NoToken
        };
        assert_eq!(refused, expected, "{wrong}");
    }
    assert_eq!(
        auth.principal(&HeaderMap::new()).await,
        Err(Unauthorized::NoToken)
    );
}

#[tokio::test]
async fn a_code_signs_in_one_device_once() {
    let (auth, _, tokens) = auth();
    let code = auth.issue_code().unwrap();
    let token = auth.sign_in(code.expose(), None).await.unwrap();
    let who = auth
        .principal(&with(&format!("Bearer {}", token.expose())))
        .await
        .unwrap();
    assert!(matches!(who, Principal::Viewer(_)));
    assert_eq!(
        auth.sign_in(code.expose(), None).await.unwrap_err(),
        SignInError::WrongCode
    );
    assert!(
        tokens
            .stored()
            .iter()
            .all(|(hash, _)| hash.0 != token.expose().as_bytes()[..32])
    );
    let Principal::Viewer(viewer) = who else { panic!() };
    auth.sign_out(viewer).await.unwrap();
    let gone = auth.principal(&with(&format!("Bearer {}", token.expose()))).await;
    assert_eq!(gone, Err(Unauthorized::UnknownToken));
}

#[tokio::test]
async fn a_code_is_worthless_after_ten_minutes() {
    let (auth, clock, _) = auth();
    let code = auth.issue_code().unwrap();
    clock.advance(Duration::from_secs(600));
    assert_eq!(
        auth.sign_in(code.expose(), None).await.unwrap_err(),
        SignInError::WrongCode
    );
}

#[tokio::test]
async fn guessing_is_slow_from_one_address_and_from_many() {
    let (auth, clock, _) = auth();
    let from = Some("192.0.2.1".parse().unwrap());
    for _ in 0..10 {
        assert_eq!(
            auth.sign_in("guess", from).await.unwrap_err(),
            SignInError::WrongCode
        );
    }
    let code = auth.issue_code().unwrap();
    let refused = auth.sign_in(code.expose(), from).await.unwrap_err();
    assert!(matches!(refused, SignInError::TooMany { .. }), "even a right one");
    auth.sign_in(code.expose(), Some("192.0.2.2".parse().unwrap()))
        .await
        .unwrap();
    for n in 0..60_u8 {
        let _ = auth.sign_in("guess", Some(IpAddr::from([198, 51, 100, n]))).await;
    }
    let refused = auth
        .sign_in("guess", Some("203.0.113.9".parse().unwrap()))
        .await
        .unwrap_err();
    assert!(matches!(refused, SignInError::TooMany { .. }));
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        auth.sign_in("guess", from).await.unwrap_err(),
        SignInError::WrongCode
    );
}

#[test]
fn secrets_do_not_print_themselves() {
    let token = random_text::<32>().unwrap();
    assert_eq!(token.expose().len(), 43);
    assert_eq!(format!("{token:?}"), "Secret");
}
