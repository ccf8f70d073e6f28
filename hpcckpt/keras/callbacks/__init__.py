"""Keras callbacks that save and resume a ``fit``.

`model_checkpoint`, `checkpoint_options`, `checkpoint_request`, `file_formats`
    `ModelCheckpoint`, its options, and what it passes to the next two.
`checkpoint_steps`, `checkpoint_files`, `step_links`
    Where it saves: steps of a run directory, with the user's names as links, or files of Keras.
`backup_and_restore`, `fit_hooks`, `fit_restore`, `fit_backup`, `async_saves`
    `BackupAndRestore`: the ``fit`` that runs, how it begins, how it is backed up.
`training_state`, `callback_state`, `metric_state`
    What a ``fit`` needs to resume, beside the model.
`reproducibility`, `exactness`
    How equal a resumed run is, and the reasons if it is not exact.
`monitor`
    Which of two values of a metric is better.
"""
