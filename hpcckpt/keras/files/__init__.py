"""Models as files: of checkpoints, of Keras, and of TensorFlow.

`describe`, `architecture`, `safe_config`
    The architecture in a checkpoint, and how a model is built from it without running foreign code.
`load_model`, `match`, `weights_file`
    A model from a checkpoint; weights into a model.
`export_model`, `write_file`, `compile_config`, `note`
    Files of Keras and SavedModels.
`import_model`, `model_config`
    Models from such files.
`tf_checkpoint`, `tf_files`
    Checkpoints in TensorFlow's own format.
"""
