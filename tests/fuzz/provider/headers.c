/* Whether the headers are there that the provider is compiled with. SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "provider.h"
