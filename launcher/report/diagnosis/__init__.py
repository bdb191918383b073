"""Why a run ended or was interrupted: from evidence to one sentence. Pure but for the logs that it reads."""
