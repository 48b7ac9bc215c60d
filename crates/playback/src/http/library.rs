//! The library as the page sees it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use ether_types::ItemId;
use http::{HeaderMap, Method, StatusCode};
use serde_json::json;

use super::App;
use super::auth::{Body, Known, Owner};
use super::error::ApiError;
use super::fields::{Fields, Read, shown_text};
use super::resource::{Keep, in_memory};
use super::view;
use crate::ports::{Page, Position};

/// Items on a page when nobody says how many, and at most.
const PAGE: usize = 10_000;

/// The longest position that is remembered: a week.
const LONGEST_MS: u64 = 7 * 24 * 3_600_000;

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Known(principal): Known,
    RawQuery(query): RawQuery,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let page = page(query.as_deref())?;
    let limit = page.limit;
    let listing = app.library.list(page).await?;
    let view = view::listing(&listing, limit, principal.is_owner());
    let body = serde_json::to_vec(&view).map_err(|_| view::unwritable())?;
    Ok(in_memory(
        &method,
        &headers,
        &body.into(),
        "application/json",
        Keep::Revalidate,
    ))
}

fn page(query: Option<&str>) -> Result<Page, ApiError> {
    let value = |name: &str| {
        let pairs = query.unwrap_or_default().split('&');
        pairs
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    };
    let limit = match value("limit") {
        None => PAGE,
        Some(text) => match text.parse::<usize>() {
            Ok(limit @ 1..=PAGE) => limit,
            _ => {
                let allowed = format_args!("a whole number from 1 to {PAGE}");
                return Err(ApiError::field("limit", &shown_text(text), allowed));
            }
        },
    };
    let after = match value("after") {
        None | Some("") => None,
        Some(text) => {
            let wrong = |_| ApiError::field("after", &shown_text(text), "the id of an item");
            Some(ItemId::new(text).map_err(wrong)?)
        }
    };
    Ok(Page { limit, after })
}

pub(super) async fn scan(State(app): State<Arc<App>>, _: Owner) -> Result<Response, ApiError> {
    app.library.rescan().await?;
    Ok((StatusCode::ACCEPTED, Json(json!({"scanning": true}))).into_response())
}

fn item_id(text: &str) -> Result<ItemId, ApiError> {
    ItemId::new(text).map_err(|_| ApiError::no_item(text))
}

pub(super) async fn item(
    State(app): State<Arc<App>>,
    Known(_): Known,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let detail = app.library.item(item_id(&id)?).await?;
    Ok(Json(view::item(&detail)).into_response())
}

pub(super) async fn picture(
    State(app): State<Arc<App>>,
    Known(_): Known,
    Path(id): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let picture = app.library.picture(item_id(&id)?).await?;
    let picture = picture.ok_or_else(ApiError::no_picture)?;
    Ok(in_memory(
        &method,
        &headers,
        &picture.bytes,
        picture.content_type,
        Keep::Revalidate,
    ))
}

impl Read for Position {
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let position_ms = fields.whole("positionMs", 0..=LONGEST_MS)?;
        let allowed = format_args!("a whole number from 0 to {LONGEST_MS}");
        Ok(Self {
            position_ms: fields.needed("positionMs", position_ms, allowed)?,
            finished: fields.flag("finished")?,
        })
    }
}

pub(super) async fn position(
    State(app): State<Arc<App>>,
    Known(_): Known,
    Path(id): Path<String>,
    Body(position): Body<Position>,
) -> Result<StatusCode, ApiError> {
    app.library.set_position(item_id(&id)?, position).await?;
    Ok(StatusCode::NO_CONTENT)
}
