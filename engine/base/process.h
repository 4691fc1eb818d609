// What a program settles with the operating system before anything else.
#pragma once

namespace gpt2 {

// Standard input, output and error are open, if only on /dev/null, so that no log or checkpoint ever gets their
// numbers; a file-size limit and a closed pipe are write errors with a message, not a death by signal.
void prepare_process();

} // namespace gpt2
