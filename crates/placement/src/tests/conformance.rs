//! The same stories on every engine (P3): a SQLite file, SQLite in memory, and PostgreSQL 14 to 17.

use std::sync::Arc;

use ether_testkit::postgres::{Durability, Server};

use crate::tests::stories::STORIES;
use crate::tests::world::{Place, World};

/// Tells every story on `place`, each in a database of its own, and names the ones that fail.
async fn tell(place: Place) {
    let mut failed = Vec::new();
    for (name, story) in STORIES {
        let place = place.clone();
        let told = tokio::spawn(async move { story(World::new(&place).await).await }).await;
        match told {
            Ok(()) => println!("ok      {name}"),
            Err(_) => {
                println!("FAILED  {name}");
                failed.push(*name);
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} stories failed: {failed:?}",
        failed.len(),
        STORIES.len()
    );
}

async fn on_postgres(major: u32) {
    if let Some(server) = Server::start(major, Durability::Fast) {
        let server = Arc::new(server);
        tell(Place::Postgres(Arc::clone(&server))).await;
        let open = "SELECT COUNT(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
        assert_eq!(server.sql(open), "0", "a transaction was left open");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stories_on_a_sqlite_file() {
    tell(Place::File).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stories_in_sqlite_memory() {
    tell(Place::Memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stories_on_postgres_14() {
    on_postgres(14).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stories_on_postgres_15() {
    on_postgres(15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stories_on_postgres_16() {
    on_postgres(16).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stories_on_postgres_17() {
    on_postgres(17).await;
}
