//! What an owner grants, to whom, and what proves the end.

use std::sync::Arc;
use std::time::Duration;

use ether_testkit::house::member;
use ether_types::{Clock, ManualClock, SystemClock, Timestamp};
use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::io::AsyncReadExt;

use super::stage::{LEASE, Stage, film, get, retire};
use crate::wire::{Admit, AdmitAnswer, Extend, ExtendAnswer, NotOpened, PrepareAnswer, RetirementAnswer};
use crate::{Bearer, Denied, Extended, NotLive, SealedBy};

fn system() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn noon() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000))
}

#[tokio::test]
async fn nobody_is_granted_what_the_ledger_does_not_know_of() {
    let stage = Stage::new(system()).await;
    let revision = stage.folder.write("a", b"film");
    let asked = stage.terms("op", "a", revision);
    let client = stage.client(&stage.front);
    for (said, answer) in [
        (Err(NotLive::NotAssigned), PrepareAnswer::NotAssigned {}),
        (Err(NotLive::Unavailable), PrepareAnswer::Unavailable {}),
    ] {
        stage.ledger.says.lock().unwrap().insert(asked.fence, said);
        assert_eq!(client.prepare(&asked).await.unwrap(), answer);
    }
    // Neither left a record behind: the same words are granted once they are true.
    stage.ledger.says.lock().unwrap().insert(asked.fence, Ok(()));
    let granted = client.prepare(&asked).await.unwrap();
    assert!(matches!(granted, PrepareAnswer::Granted { .. }), "{granted:?}");
    assert_eq!(
        client.prepare(&asked).await.unwrap(),
        granted,
        "asked twice, granted once"
    );
    let mut other = asked.clone();
    other.until = stage.in_time(LEASE / 2);
    assert_eq!(client.prepare(&other).await.unwrap(), PrepareAnswer::Conflict {});
}

#[tokio::test]
async fn a_stolen_handle_and_bearer_are_worth_nothing_to_another_boot() {
    let stage = Stage::new(system()).await;
    let granted = stage.granted("op", "a", &film(1_000)).await;
    let worker = stage.client(&stage.worker);
    let fence = granted.fence;
    let AdmitAnswer::Admitted { bearer, .. } = worker.admit(&granted.handle, &Admit { fence }).await.unwrap()
    else {
        panic!("the worker is admitted");
    };
    let tag = granted.revision.word();
    for stranger in [member("gpu", "g2"), member("front", "f1"), member("thief", "g1")] {
        let theirs = stage.client(&stranger);
        let read = theirs
            .read(&granted.handle, &bearer, &tag, &(0..10))
            .await
            .unwrap();
        assert_eq!(read.status(), StatusCode::NOT_FOUND, "{stranger}");
        let admitted = theirs.admit(&granted.handle, &Admit { fence }).await.unwrap();
        let denied = matches!(
            admitted,
            AdmitAnswer::Denied {
                why: Denied::NoSuchGrant
            }
        );
        assert!(denied, "{admitted:?}");
    }
    let guessed = Bearer::random().unwrap();
    let read = worker
        .read(&granted.handle, &guessed, &tag, &(0..10))
        .await
        .unwrap();
    assert_eq!(read.status(), StatusCode::UNAUTHORIZED);
    let read = worker
        .read(&granted.handle, &bearer, &tag, &(990..1_000))
        .await
        .unwrap();
    assert_eq!(read.status(), StatusCode::PARTIAL_CONTENT);
    let bytes = read.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(bytes, film(1_000)[990..]);
    let strangers = stage
        .client(&member("thief", "t1"))
        .retire(&retire("op"))
        .await
        .unwrap();
    assert_eq!(strangers, RetirementAnswer::Unknown {}, "nobody else ends it");
    assert_eq!(stage.retired("op").await, 1);
}

#[tokio::test]
async fn a_film_in_another_state_is_not_opened_and_a_replaced_one_goes_on_as_it_was() {
    let stage = Stage::new(system()).await;
    let client = stage.client(&stage.front);
    let revision = stage.folder.write("a", b"first");
    stage.folder.write("a", b"second, longer");
    let changed = client.prepare(&stage.terms("op", "a", revision)).await.unwrap();
    assert_eq!(
        changed,
        PrepareAnswer::NotOpened {
            why: NotOpened::Changed
        }
    );
    let none = client
        .prepare(&stage.terms("none", "nothing", revision))
        .await
        .unwrap();
    assert_eq!(
        none,
        PrepareAnswer::NotOpened {
            why: NotOpened::NoItem
        }
    );
    assert_eq!(
        stage.retired("op").await,
        0,
        "what was not opened is proved ended"
    );

    let bytes = film(100_000);
    let granted = stage.granted("op2", "b", &bytes).await;
    let input = stage.gateway.open(granted).await.unwrap();
    stage.folder.write("next", &film(50));
    std::fs::rename(stage.folder.path("next"), stage.folder.path("b")).unwrap();
    let heard = get(input.url(), "").await;
    // A link count changes nothing that is part of the state.
    assert!(heard.whole && heard.body == bytes, "{}", heard.head);
}

#[tokio::test]
async fn a_retirement_cuts_a_reader_off_that_takes_nothing_and_is_proved_after_it() {
    // No timer ends anything here: neither a deadline nor a look at the certificate's.
    let stage = Stage::new(Arc::new(noon())).await;
    let bytes = film(16 << 20);
    let granted = stage.granted("op", "a", &bytes).await;
    let worker = stage.client(&stage.worker);
    let fence = granted.fence;
    let AdmitAnswer::Admitted { bearer, .. } = worker.admit(&granted.handle, &Admit { fence }).await.unwrap()
    else {
        panic!("the worker is admitted");
    };
    let range = 0..granted.revision.size;
    let tag = granted.revision.word();
    // Longer than the sockets on the way hold, and not read.
    let mut stuck = worker.read(&granted.handle, &bearer, &tag, &range).await.unwrap();
    let front = stage.client(&stage.front);
    let first = front.retire(&retire("op")).await.unwrap();
    assert_eq!(first, RetirementAnswer::Pending { readers: 1 });
    assert_eq!(stage.retired("op").await, 1);
    let mut came = 0;
    let broken = loop {
        match stuck.body_mut().frame().await {
            Some(Ok(frame)) => came += frame.into_data().unwrap().len(),
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    assert!(broken && came < bytes.len(), "{came}");
    assert_eq!(
        front.retire(&retire("op")).await.unwrap(),
        RetirementAnswer::Proved { answers: 1 }
    );
    let late = worker.read(&granted.handle, &bearer, &tag, &range).await.unwrap();
    assert_eq!(late.status(), StatusCode::GONE);
}

#[tokio::test]
async fn an_operation_that_is_retired_before_it_comes_never_comes() {
    let stage = Stage::new(system()).await;
    let revision = stage.folder.write("a", b"film");
    let front = stage.client(&stage.front);
    let proved = RetirementAnswer::Proved { answers: 0 };
    assert_eq!(front.retire(&retire("op")).await.unwrap(), proved);
    let late = front.prepare(&stage.terms("op", "a", revision)).await.unwrap();
    assert_eq!(late, PrepareAnswer::Barred {});
    assert_eq!(front.retire(&retire("op")).await.unwrap(), proved);
}

#[tokio::test]
async fn a_file_that_takes_long_to_open_is_waited_for_and_its_grant_can_end_meanwhile() {
    let clock = noon();
    let stage = Stage::new(Arc::new(clock.clone())).await;
    let revision = stage.folder.write("a", b"film");
    let closed = stage.folder.door.acquire_many(100).await.unwrap();
    let front = stage.client(&stage.front);
    let asked = stage.terms("op", "a", revision);
    let asking = tokio::spawn({
        let (front, asked) = (front.clone(), asked.clone());
        async move { front.prepare(&asked).await.unwrap() }
    });
    // It waits by the clock, which only the test moves.
    let answer = loop {
        clock.advance(Duration::from_millis(500));
        tokio::time::sleep(Duration::from_millis(5)).await;
        if asking.is_finished() {
            break asking.await.unwrap();
        }
    };
    assert!(matches!(answer, PrepareAnswer::Opening { .. }), "{answer:?}");
    let pending = front.retire(&retire("op")).await.unwrap();
    assert_eq!(pending, RetirementAnswer::Pending { readers: 0 });
    drop(closed);
    assert_eq!(stage.retired("op").await, 0);
    let ended = front.prepare(&asked).await.unwrap();
    assert_eq!(
        ended,
        PrepareAnswer::Ended {
            by: SealedBy::Request
        }
    );
}

#[tokio::test]
async fn a_deadline_ends_a_reader_and_an_extension_keeps_it() {
    let clock = noon();
    let stage = Stage::new(Arc::new(clock.clone())).await;
    let bytes = film(16 << 20);
    let granted = stage.granted("op", "a", &bytes).await;
    let (fence, handle) = (granted.fence, granted.handle.clone());
    let input = stage.gateway.open(granted).await.unwrap();
    let mut stuck = super::stage::call(input.url(), "GET", None, "").await;
    let mut first = [0; 1_024];
    stuck.read_exact(&mut first).await.unwrap();

    let wish = Extend {
        fence,
        version: 1,
        previous: stage.in_time(LEASE),
        until: stage.in_time(2 * LEASE),
    };
    let held = Extended {
        version: 1,
        until: wish.until,
    };
    let extended = ExtendAnswer::Extended { held };
    assert_eq!(input.extend(&wish).await.unwrap(), extended);
    assert_eq!(
        input.extend(&wish).await.unwrap(),
        extended,
        "the same words, the same answer"
    );
    let other = Extend {
        until: stage.in_time(3 * LEASE),
        ..wish.clone()
    };
    assert_eq!(
        input.extend(&other).await.unwrap(),
        ExtendAnswer::Conflict { held }
    );
    let far = Extend {
        version: 2,
        previous: wish.until,
        until: stage.in_time(Duration::from_secs(601)),
        ..wish
    };
    let refused = input.extend(&far).await.unwrap();
    let most_millis = 600_000;
    let previous = held.until;
    assert_eq!(
        refused,
        ExtendAnswer::Deadline {
            previous,
            most_millis
        }
    );
    stage
        .ledger
        .says
        .lock()
        .unwrap()
        .insert(fence, Err(NotLive::NotAssigned));
    let next = Extend {
        version: 2,
        previous,
        until: stage.in_time(3 * LEASE),
        fence,
    };
    assert_eq!(input.extend(&next).await.unwrap(), ExtendAnswer::NotAssigned {});

    clock.advance(LEASE + Duration::from_secs(1));
    stuck.read_exact(&mut first).await.unwrap();
    clock.advance(LEASE);
    // What the owner cuts off breaks, and the gateway asks again after a moment and finds the grant ended: both wait by
    // the clock.
    let reading = tokio::spawn(async move {
        let mut rest = Vec::new();
        let _ = stuck.read_to_end(&mut rest).await;
        rest.len()
    });
    while !reading.is_finished() {
        clock.advance(Duration::from_millis(500));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(reading.await.unwrap() < bytes.len());
    assert_eq!(input.failure(), Some(crate::InputFailure::Ended));
    let late = stage
        .client(&stage.worker)
        .admit(&handle, &Admit { fence })
        .await
        .unwrap();
    assert!(
        matches!(late, AdmitAnswer::Denied { why: Denied::Expired }),
        "{late:?}"
    );
}

#[tokio::test]
async fn an_owner_that_stops_ends_every_reader_before_it_is_done() {
    let stage = Stage::new(system()).await;
    let granted = stage.granted("op", "a", &film(16 << 20)).await;
    let input = stage.gateway.open(granted).await.unwrap();
    let mut stuck = super::stage::call(input.url(), "GET", None, "").await;
    let mut first = [0; 1_024];
    stuck.read_exact(&mut first).await.unwrap();
    stage.end().await;
    let mut rest = Vec::new();
    let _ = stuck.read_to_end(&mut rest).await;
    assert!(rest.len() < 16 << 20);
}
