//! The file behind an item, to a player that was decided to get it, or to whoever is signed in.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use ether_transfer::{Entity, FilePieces};
use ether_types::ItemId;
use http::header::CONTENT_DISPOSITION;
use http::{HeaderMap, Method};

use super::App;
use super::auth::{grant_of, granted};
use super::body::FileBody;
use super::error::ApiError;
use super::resource::{Keep, Resource, set};
use crate::grant::GrantScope;
use crate::part::{self, Part};
use crate::ports::OpenError;

pub(super) async fn file(
    State(app): State<Arc<App>>,
    Path((item, stamp, _name)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let query = query.as_deref();
    let (detail, hold) = match grant_of(query) {
        Some(grant) => {
            let playback = granted(&app, Some(grant), None, GrantScope::File)?;
            if playback.item().as_str() != item {
                return Err(ApiError::wrong_scope());
            }
            (Arc::clone(&playback.item), Some(playback.hold()))
        }
        None => {
            app.auth.principal(&headers).await?;
            let id = ItemId::new(&item).map_err(|_| ApiError::no_item(&item))?;
            (Arc::new(app.library.item(id).await?), None)
        }
    };
    let part = Part::of(&detail);
    if part.stamp != stamp {
        let file = detail.summary.file.clone();
        return Err(OpenError::Changed { file }.into());
    }
    let revision = detail.revision;
    let file = app.library.open(&detail).await?;
    let resource = Resource {
        entity: Entity {
            len: revision.size,
            etag: &part.stamp,
            modified: Some(revision.modified()),
            dated: true,
        },
        content_type: part::content_type(&detail.facts.container, detail.summary.kind),
        keep: Keep::Revalidate,
    };
    let disk = Arc::clone(&app.disk);
    let mut response = resource.respond(&method, &headers, |range| {
        Body::new(FileBody::new(FilePieces::new(file, revision, range, disk), hold))
    });
    let download = query.is_some_and(|query| query.split('&').any(|pair| pair == "download=1"));
    if download && response.status().is_success() {
        set(response.headers_mut(), CONTENT_DISPOSITION, &part.disposition());
    }
    Ok(response)
}
