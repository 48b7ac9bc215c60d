//! Viewers' tokens in the database: hashes only.

use std::time::Duration;

use ether_encoder::BoxFuture;
use ether_playback::ports::{NewViewer, TokenHash, Tokens, TokensUnavailable, ViewerId};
use ether_store::{Bound, Component, Migration, StoreError, Tables, Value};

/// The tables of viewers.
pub(crate) const COMPONENT: Component = Component {
    name: "viewers",
    migrations: &[Migration {
        version: 1,
        name: "tokens",
        sql: "CREATE TABLE viewers_tokens (
                  hash TEXT PRIMARY KEY,
                  viewer TEXT NOT NULL,
                  created_at BIGINT NOT NULL
              );
              CREATE UNIQUE INDEX viewers_tokens_viewer ON viewers_tokens (viewer)",
    }],
};

const PATIENCE: Duration = Duration::from_secs(5);

/// Tokens in the tables of [`COMPONENT`].
pub(crate) struct StoredTokens(pub(crate) Tables);

impl Tokens for StoredTokens {
    fn find(&self, hash: TokenHash) -> BoxFuture<'_, Result<Option<ViewerId>, TokensUnavailable>> {
        Box::pin(async move {
            let select = "SELECT viewer FROM viewers_tokens WHERE hash = $1";
            let rows = self
                .0
                .query(Bound::of(PATIENCE), select, vec![Value::from(text(hash))])
                .await;
            let rows = rows.map_err(|error| unavailable(&error))?;
            let viewer = rows.first().map(|row| row.text(0_usize)).transpose();
            viewer
                .map(|id| id.map(|id| ViewerId(id.to_owned())))
                .map_err(|error| unavailable(&error))
        })
    }

    fn insert(&self, viewer: NewViewer) -> BoxFuture<'_, Result<(), TokensUnavailable>> {
        let values = [
            Value::from(text(viewer.hash)),
            Value::from(viewer.id.0),
            Value::from(viewer.created_at.as_micros()),
        ];
        self.change(
            "INSERT INTO viewers_tokens (hash, viewer, created_at) VALUES ($1, $2, $3)",
            values.into(),
        )
    }

    fn revoke(&self, viewer: ViewerId) -> BoxFuture<'_, Result<(), TokensUnavailable>> {
        self.change(
            "DELETE FROM viewers_tokens WHERE viewer = $1",
            vec![Value::from(viewer.0)],
        )
    }
}

impl StoredTokens {
    fn change(&self, sql: &'static str, values: Vec<Value>) -> BoxFuture<'_, Result<(), TokensUnavailable>> {
        Box::pin(async move {
            let written = self.0.write(Bound::of(PATIENCE), move |tx| {
                Box::pin(async move { tx.execute(sql, &values).await.map(|_| ()) })
            });
            written.await.map_err(|error: StoreError| unavailable(&error))
        })
    }
}

fn text(hash: TokenHash) -> String {
    hash.0.iter().map(|b| format!("{b:02x}")).collect()
}

fn unavailable(error: &StoreError) -> TokensUnavailable {
    tracing::warn!(%error, "the store of viewers' tokens failed");
    TokensUnavailable
}
