//! The page: static files that are part of the program. They hold no secret, so they need no token.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method};

use crate::http::{ApiError, Keep, digest, in_memory_tagged};

macro_rules! asset {
    ($name:literal) => {
        Asset {
            name: $name,
            bytes: include_bytes!(concat!("../web/", $name)),
        }
    };
}

/// Every file of the page, by its path below `web/`.
const FILES: &[Asset] = &[
    asset!("abilities.js"),
    asset!("api.js"),
    asset!("app.js"),
    asset!("captions.js"),
    asset!("catalog.js"),
    asset!("controls.js"),
    asset!("curtain.js"),
    asset!("details.js"),
    asset!("dom.js"),
    asset!("engine.js"),
    asset!("errors.js"),
    asset!("format.js"),
    asset!("grid.js"),
    asset!("icon.svg"),
    asset!("index.html"),
    asset!("library.css"),
    asset!("library.js"),
    asset!("media-keys.js"),
    asset!("pictures.js"),
    asset!("playback.js"),
    asset!("player.css"),
    asset!("sign-in.js"),
    asset!("style.css"),
    asset!("subtitles.js"),
    asset!("tune.js"),
    asset!("vendor/hls.js-LICENSE.txt"),
    asset!("vendor/hls.js-NOTICE.txt"),
    asset!("vendor/hls.min.js"),
    asset!("watch.js"),
];

/// The file that stands at the root.
const INDEX: &str = "index.html";

/// One embedded file.
struct Asset {
    name: &'static str,
    bytes: &'static [u8],
}

/// The files with their tags. Hashed once, when the first is asked for.
static TAGGED: LazyLock<Vec<(&'static Asset, String)>> =
    LazyLock::new(|| FILES.iter().map(|asset| (asset, digest(asset.bytes))).collect());

pub(crate) async fn index(method: Method, headers: HeaderMap) -> Result<Response, ApiError> {
    serve(INDEX, &method, &headers)
}

pub(crate) async fn asset(
    Path(path): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    serve(&path, &method, &headers)
}

fn serve(name: &str, method: &Method, headers: &HeaderMap) -> Result<Response, ApiError> {
    let found = TAGGED.iter().find(|(asset, _)| asset.name == name);
    let (asset, etag) = found.ok_or_else(ApiError::no_route)?;
    let bytes = Bytes::from_static(asset.bytes);
    Ok(in_memory_tagged(
        method,
        headers,
        &bytes,
        etag,
        content_type(asset.name),
        Keep::RevalidatePublic,
    ))
}

/// The media type of a file by how its name ends.
fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "map") => "application/json",
        Some("webmanifest") => "application/manifest+json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_a_type_that_a_browser_runs_or_shows() {
        assert!(FILES.iter().any(|asset| asset.name == INDEX));
        for asset in FILES {
            assert_ne!(
                content_type(asset.name),
                "application/octet-stream",
                "{}",
                asset.name
            );
            assert!(!asset.bytes.is_empty(), "{}", asset.name);
        }
    }

    /// Whatever the page names must be there, or a browser shows half a page.
    #[test]
    fn every_file_that_the_page_names_is_embedded() {
        for asset in FILES.iter().filter(|asset| asset.name.ends_with(".html")) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for named in text.split('"').filter_map(|text| text.strip_prefix("/assets/")) {
                assert!(FILES.iter().any(|asset| asset.name == named), "{named}");
            }
        }
    }
}
