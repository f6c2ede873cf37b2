"""From the messages of a request to the text of its prompt, by the model's own chat template."""

from __future__ import annotations

from engine.frontend.chat_template import check_template_kwargs
from engine.types.errors import InvalidRequestError

from server.protocol.chat import Conversation
from server.state import ServerState


async def render_prompt(state: ServerState, conversation: Conversation) -> str:
    """Return the prompt's text; it is tokenized without adding special tokens.

    Raises:
        InvalidRequestError: malformed messages, or the template refuses them, or there is none.
    """
    template = state.get_engine().chat_template
    if template is None:
        raise InvalidRequestError(
            "This model has no chat template; use /v1/completions, or start the server with "
            "model.chat_template.",
            param="messages",
        )
    # Checked before they become keyword arguments, where a reserved name would be ours.
    variables = check_template_kwargs(conversation.template_kwargs)
    return await state.run_in_thread(
        lambda: template.render(
            conversation.messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            documents=conversation.documents,
            **variables,
        )
    )
