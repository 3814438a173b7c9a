"""YDB's topic service as a front: StreamWrite, StreamRead, and the control plane that its SDKs need."""
