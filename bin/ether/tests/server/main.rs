//! What a person meets who runs `ether`: the built program as a child process, real films, real FFmpeg, real HTTP.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod bed;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod command_line;
#[cfg(test)]
mod dash;
#[cfg(test)]
mod drawn;
#[cfg(test)]
mod everywhere;
#[cfg(test)]
mod films;
#[cfg(test)]
mod hls;
#[cfg(test)]
mod kept;
#[cfg(test)]
mod ladders;
#[cfg(test)]
mod newcomer;
mod owned;
#[cfg(test)]
mod pictures;
#[cfg(test)]
mod play;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod progressive;
#[cfg(test)]
mod real_files;
#[cfg(test)]
mod whole_films;
#[cfg(test)]
mod wire;
