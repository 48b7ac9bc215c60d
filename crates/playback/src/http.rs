//! The public HTTP surface: the page, the API that it uses, and the media that players fetch.
//!
//! A request passes the guard first; then its route authenticates it (a token for the API, a grant for
//! media), and only then anything is looked up, so that whoever may not ask learns nothing from the answer.

mod auth;
mod body;
mod error;
mod fields;
mod guard;
mod library;
mod media;
mod parts;
mod progressive;
mod resource;
mod server;
mod sessions;
mod sign_in;
mod subtitles;
mod view;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};
use ether_types::Clock;
use tokio::sync::Semaphore;

use crate::auth::Auth;
use crate::playbacks::Playbacks;
use crate::ports::{Library, Texts};
pub(crate) use error::ApiError;
pub(crate) use resource::{Keep, digest, in_memory_tagged};

#[cfg(test)]
pub(crate) use subtitles::ready_track;

pub use guard::{Ends, Hosts, Origins};
pub use server::{Server, ServerLimits, ServerReport};

#[cfg(test)]
mod tests;

/// Most bytes of a request's body.
const MAX_BODY: usize = 64 * 1024;

/// Everything that the surface is made from.
pub struct Surface {
    /// The playbacks.
    pub playbacks: Arc<Playbacks>,
    /// The films and songs.
    pub library: Arc<dyn Library>,
    /// The text tracks of items.
    pub texts: Arc<dyn Texts>,
    /// Who is who.
    pub auth: Arc<Auth>,
    /// Names that the server answers to.
    pub hosts: Hosts,
    /// Other sites whose pages may call it; none by default.
    pub origins: Origins,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

pub(crate) struct App {
    playbacks: Arc<Playbacks>,
    library: Arc<dyn Library>,
    texts: Arc<dyn Texts>,
    auth: Arc<Auth>,
    hosts: Hosts,
    origins: Origins,
    clock: Arc<dyn Clock>,
    /// Transfers that wait for a disk at once.
    disk: Arc<Semaphore>,
}

impl fmt::Debug for Surface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Surface")
    }
}

/// The routes of `surface`. Requests that come without [`Ends`] are answered too, to `localhost` and the
/// configured names only.
pub fn router(surface: Surface) -> Router {
    let app = Arc::new(App {
        playbacks: surface.playbacks,
        library: surface.library,
        texts: surface.texts,
        auth: surface.auth,
        hosts: surface.hosts,
        origins: surface.origins,
        clock: surface.clock,
        disk: Arc::new(Semaphore::new(ether_transfer::DISK_READS)),
    });
    Router::new()
        .route("/", get(crate::assets::index))
        .route("/index.html", get(crate::assets::index))
        .route("/assets/{*path}", get(crate::assets::asset))
        .route(
            "/ether/api/sign-in",
            post(sign_in::sign_in).delete(sign_in::sign_out),
        )
        .route("/ether/api/library", get(library::list))
        .route("/ether/api/library/scan", post(library::scan))
        .route("/ether/api/items/{id}", get(library::item))
        .route("/ether/api/items/{id}/picture", get(library::picture))
        .route("/ether/api/items/{id}/position", put(library::position))
        .route("/ether/api/sessions", get(sessions::list).post(sessions::create))
        .route(
            "/ether/api/sessions/{id}",
            get(sessions::one).delete(sessions::end),
        )
        .route("/ether/api/sessions/{id}/state", post(sessions::state))
        .route("/ether/api/sessions/{id}/start.mpd", get(media::manifest))
        .route("/ether/api/sessions/{id}/subtitles.vtt", get(subtitles::vtt))
        .route("/ether/api/sessions/{id}/subtitles.ass", get(subtitles::script))
        .route(
            "/ether/api/sessions/{id}/subtitles.m3u8",
            get(subtitles::playlist),
        )
        .route("/ether/api/sessions/{id}/fonts/{number}", get(subtitles::font))
        .route("/ether/api/sessions/{id}/start.mkv", get(progressive::stream))
        .route("/sessions/media/{sid}/index.m3u8", get(media::multivariant))
        .route(
            "/sessions/media/{sid}/{representation}/{resource}",
            get(media::resource),
        )
        .route("/library/parts/{part}/{stamp}/{name}", get(parts::file))
        .fallback(async || ApiError::no_route())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(Arc::clone(&app), guard::guard))
        .with_state(app)
}
